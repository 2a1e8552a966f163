/* Failures: one function, words with numbers in them, no allocation. */

#include <string.h>

#include "model.h"

typedef struct {
  char *at, *end;
} Writer;

static void put(Writer *w, const char *text, size_t length) {
  const size_t room = (size_t)(w->end - w->at);
  const size_t n = length < room ? length : room;
  for (size_t k = 0; k < n; k++)
    *w->at++ = text[k] ? text[k] : '?'; /* a zero would end the words */
}

static void put_unsigned(Writer *w, uint64_t value) {
  char digits[20];
  size_t at = sizeof digits;
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  put(w, digits + at, sizeof digits - at);
}

static void put_signed(Writer *w, int64_t value) {
  if (value < 0) put(w, "-", 1);
  put_unsigned(w, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

ErText er_text(const char *text) {
  return (ErText){text, (uint32_t)strlen(text)};
}

void er_format(char *out, size_t size, const char *format, va_list args) {
  Writer w = {out, out + size - 1};
  for (; *format; format++) {
    if (*format != '%') {
      put(&w, format, 1);
      continue;
    }
    switch (*++format) {
      case 's': {
        const char *text = va_arg(args, const char *);
        put(&w, text, strlen(text));
        break;
      }
      case 'q': {
        const ErText text = va_arg(args, ErText);
        put(&w, text.text, text.length);
        break;
      }
      case 'u':
        put_unsigned(&w, va_arg(args, uint32_t));
        break;
      default: /* 'i' */
        put_signed(&w, va_arg(args, int64_t));
    }
  }
  *w.at = 0;
}

/* Where the program stands, for failures that are not the caller's. */
static void put_position(ErModel *m) {
  const ErFrame *frame = &m->frames[m->depth - 1];
  const size_t used = strlen(m->error);
  Writer w = {m->error + used, m->error + sizeof m->error - 1};
  const ErText name = m->strings[frame->function->row->name];
  put(&w, " (", 2);
  put(&w, er_opcode_names[*m->pc & 255], strlen(er_opcode_names[*m->pc & 255]));
  put(&w, " at ", 4);
  put(&w, name.text, name.length);
  put(&w, "+", 1);
  put_unsigned(&w, (uint64_t)(m->pc - frame->function->code));
  put(&w, ")", 1);
  *w.at = 0;
}

bool er_fail(ErModel *m, ErError kind, const char *format, ...) {
  va_list args;
  va_start(args, format);
  er_format(m->error, sizeof m->error, format, args);
  va_end(args);
  m->error_kind = kind;
  const bool callers_fault = kind == ER_ERROR_INPUT || kind == ER_ERROR_CHECK;
  if (m->state == ER_STATE_RUNNING && m->depth && !callers_fault) put_position(m);
  return false;
}

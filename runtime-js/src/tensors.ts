/** Typed arrays and their dtypes; inputs in the many forms that callers have them. */

import { EdgeRelaxError } from './errors.ts';
import type { TensorInfo } from './manifest.ts';

export type TypedArray =
  | Float32Array
  | Float64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array;

interface ArrayType {
  new (length: number): TypedArray;
  new (buffer: ArrayBuffer, offset?: number, length?: number): TypedArray;
  readonly BYTES_PER_ELEMENT: number;
}

const ARRAYS: Record<string, ArrayType> = {
  f32: Float32Array,
  f64: Float64Array,
  f16: Uint16Array,
  bf16: Uint16Array,
  i64: BigInt64Array,
  i32: Int32Array,
  i16: Int16Array,
  i8: Int8Array,
  u64: BigUint64Array,
  u32: Uint32Array,
  u16: Uint16Array,
  u8: Uint8Array,
  bool: Uint8Array,
};

/** Data and sizes. A missing shape is taken from the model where only one fits. */
export interface TensorData {
  readonly data: TypedArray | ArrayLike<number> | ArrayLike<bigint>;
  readonly shape: readonly number[];
}

export type Input = TensorData | TypedArray | number | bigint | boolean | readonly unknown[];

/** Bytes of one element. */
export function elementBytes(dtype: string): number {
  return arrayType(dtype).BYTES_PER_ELEMENT;
}

/** A typed array over bytes that it then owns. f16 and bf16 come as raw Uint16Array. */
export function fromBytes(dtype: string, bytes: ArrayBuffer): TypedArray {
  return new (arrayType(dtype))(bytes);
}

/** A typed array over bytes of a buffer that is another's. */
export function viewOf(
  dtype: string,
  buffer: ArrayBuffer,
  offset: number,
  shape: readonly number[],
): TypedArray {
  const count = shape.reduce((product, size) => product * size, 1);
  return new (arrayType(dtype))(buffer, count ? offset : 0, count);
}

/** An input as typed data of the signature's dtype, with its shape; throws `input`. */
export function readInput(info: TensorInfo, value: Input): { data: TypedArray; shape: number[] } {
  const { data, shape } = isTensor(value) ? value : inferShape(info, value);
  const typed = convert(info, data);
  const count = shape.reduce((product, size) => product * size, 1);
  if (shape.some((size) => !Number.isSafeInteger(size) || size < 0)) {
    throw wrong(info, `the shape [${shape.join(', ')}] is no list of sizes`);
  }
  if (typed.length !== count) {
    throw wrong(info, `${typed.length} elements do not fill the shape [${shape.join(', ')}]`);
  }
  if (info.shape && info.shape.length !== shape.length) {
    throw wrong(info, `rank ${shape.length}, expected rank ${info.shape.length}`);
  }
  return { data: typed, shape: [...shape] };
}

function isTensor(value: Input): value is TensorData {
  return (
    typeof value === 'object' &&
    value !== null && // callers without types
    'data' in value &&
    Array.isArray((value as TensorData).shape)
  );
}

function arrayType(dtype: string): ArrayType {
  const type = ARRAYS[dtype];
  if (!type) throw new EdgeRelaxError('input', `dtype ${dtype} is not known to this loader`);
  return type;
}

function describe(info: TensorInfo): string {
  return `${info.dtype}[${info.shape ? info.shape.join(', ') : '…'}]`;
}

function wrong(info: TensorInfo, problem: string): EdgeRelaxError {
  return new EdgeRelaxError('input', `input '${info.name}': ${problem} (it is ${describe(info)})`);
}

/** A number, nested lists, or flat data whose one unknown size follows from its length. */
function inferShape(info: TensorInfo, value: Exclude<Input, TensorData>): TensorData {
  if (typeof value === 'number' || typeof value === 'boolean') {
    return { data: [Number(value)], shape: ones(info) };
  }
  if (typeof value === 'bigint') return { data: [value], shape: ones(info) };
  if (Array.isArray(value) && value.some(Array.isArray)) return flatten(info, value);
  const data = listOf(info, value);
  const dims = info.shape;
  if (!dims) throw wrong(info, 'a shape must be given as { data, shape }');
  const unknown = dims.filter((dim) => typeof dim !== 'number').length;
  const known = dims.reduce<number>((p, dim) => (typeof dim === 'number' ? p * dim : p), 1);
  if (unknown > 1 || (unknown === 1 && (known === 0 || data.length % known !== 0))) {
    throw wrong(info, 'its sizes do not follow from the data; give { data, shape }');
  }
  return { data, shape: dims.map((dim) => (typeof dim === 'number' ? dim : data.length / known)) };
}

function ones(info: TensorInfo): number[] {
  return info.shape ? info.shape.map(() => 1) : [];
}

function flatten(info: TensorInfo, value: readonly unknown[]): TensorData {
  const shape: number[] = [];
  for (let level: unknown = value; Array.isArray(level); level = level[0]) shape.push(level.length);
  const data: number[] = [];
  const visit = (level: unknown, depth: number): void => {
    if (Array.isArray(level) ? level.length !== shape[depth] : depth !== shape.length) {
      throw wrong(info, 'its lists are of different lengths or depths');
    }
    if (!Array.isArray(level)) data.push(level as number);
    else for (const item of level) visit(item, depth + 1);
  };
  visit(value, 0);
  return { data, shape };
}

/** A typed array, or a list whose elements nothing is known of. */
function listOf(info: TensorInfo, value: unknown): ArrayLike<number> {
  const typed = ArrayBuffer.isView(value) && !(value instanceof DataView);
  if (!typed && !Array.isArray(value)) {
    throw wrong(info, `${kindOf(value)} is no array of numbers`);
  }
  return value as unknown as ArrayLike<number>;
}

function kindOf(value: unknown): string {
  if (typeof value !== 'object' || value === null) return `${String(value)} (${typeof value})`;
  return value.constructor?.name ?? 'an object';
}

const FLOATS = new Set(['f32', 'f64', 'f16']);
const INTEGERS = new Set(['i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', 'u8', 'bool']);

function convert(info: TensorInfo, data: unknown): TypedArray {
  const type = arrayType(info.dtype);
  const list = listOf(info, data);
  const isInteger = INTEGERS.has(info.dtype);
  if (list instanceof (type as unknown as new () => TypedArray)) {
    return info.dtype === 'bool' ? convertIntegers(info, list, type) : list;
  }
  const numbers = Array.isArray(list) ? checkElements(info, list, isInteger) : list;
  const kind = kindOf(list);
  const isFloat = kind.startsWith('Float');
  if (FLOATS.has(info.dtype) && (isFloat || Array.isArray(list))) {
    if (info.dtype === 'f16') return convertHalf(info, numbers);
    const out = new type(numbers.length);
    (out as Float32Array).set(numbers);
    return out;
  }
  if (isInteger && !isFloat) return convertIntegers(info, numbers, type);
  throw wrong(info, `${kind} does not fit the dtype ${info.dtype}`);
}

/** The numbers of a plain list; booleans count as 0 and 1, integers may be bigints. */
function checkElements(
  info: TensorInfo,
  list: readonly unknown[],
  bigints: boolean,
): ArrayLike<number> {
  return list.map((value, k) => {
    if (typeof value === 'number' || (bigints && typeof value === 'bigint')) return value as number;
    if (typeof value === 'boolean') return Number(value);
    throw wrong(info, `element ${k}, ${kindOf(value)}, is no number`);
  });
}

/** Any integers, as long as none is changed by it. */
function convertIntegers(
  info: TensorInfo,
  data: ArrayLike<number | bigint>,
  type: ArrayType,
): TypedArray {
  const out = new type(data.length);
  const big = info.dtype === 'i64' || info.dtype === 'u64';
  const isBool = info.dtype === 'bool';
  for (let k = 0; k < data.length; k++) {
    const value = data[k] as number | bigint;
    if (typeof value === 'number' && !Number.isInteger(value)) {
      throw wrong(info, `element ${k} is ${value}, not an integer`);
    }
    const exact = big ? BigInt(value) : Number(value);
    (out as { [index: number]: number | bigint })[k] = exact;
    if (out[k] != exact || (isBool && exact > 1)) {
      throw wrong(info, `element ${k} is ${value}, outside the range of ${info.dtype}`);
    }
  }
  return out;
}

/** Float16Array where the browser has it; numbers are rounded; Uint16Array is taken as raw bits. */
function convertHalf(info: TensorInfo, data: ArrayLike<number>): TypedArray {
  const Half = (
    globalThis as unknown as { Float16Array?: new (source: ArrayLike<number>) => TypedArray }
  ).Float16Array;
  if (!Half) throw wrong(info, 'this browser has no Float16Array; give the bits as Uint16Array');
  const half = data instanceof Half ? data : new Half(data);
  return new Uint16Array(half.buffer as ArrayBuffer, half.byteOffset, half.length);
}

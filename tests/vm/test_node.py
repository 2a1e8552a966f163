"""The same `vm.wasm` in V8: it imports its memory, kernels come through the grown table."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from edgerelax.vm import isa
from tests.vm.conftest import VM
from tests.vm.cpu_kernels import ADD_ONE, COUNT, wasm
from tests.vm.test_cpu_kernels import program

SCRIPT = """
const fs = require('fs');
const [vmPath, programPath, kernelsPath, count, layout] = process.argv.slice(1);
const { input, output, dtype } = JSON.parse(layout);
(async () => {
  const memory = new WebAssembly.Memory({ initial: 16, maximum: 65536 });
  const wasm = fs.readFileSync(vmPath);
  wasm[wasm.indexOf('env\\x06memory\\x02') + 11] = 1; // imports memory that is not shared
  const { instance } = await WebAssembly.instantiate(wasm, { env: { memory } });
  const vm = { ...instance.exports, memory };
  vm._initialize();
  const table = vm.__indirect_function_table;
  const base = table.grow(Number(count));
  const env = { memory: vm.memory, table, ...vm,
    base: new WebAssembly.Global({ value: 'i32', mutable: false }, base) };
  await WebAssembly.instantiate(fs.readFileSync(kernelsPath), { env });
  const copy = (bytes) => {
    const at = vm.er_alloc(bytes.length);
    new Uint8Array(vm.memory.buffer).set(bytes, at);
    return at;
  };
  const program = fs.readFileSync(programPath);
  const model = vm.er_open(copy(program), program.length);
  vm.er_set_kernels(model, base, Number(count));
  const results = [];
  for (const n of [3, 0, 200000, 3]) {
    const x = Float32Array.from({ length: n }, (_, k) => k);
    const at = copy(new Uint8Array(x.buffer));
    const words = new Int32Array(vm.memory.buffer, vm.er_input(model, 0), input.words);
    words[input.dtype] = dtype;
    words[input.rank] = 1;
    words[input.dims] = n;
    words[input.bytes] = 4 * n;
    words[input.pointer] = at;
    const status = vm.er_run(model, 0);
    const out = new Int32Array(vm.memory.buffer, vm.er_output(model, 0), output.words);
    const y = new Float32Array(vm.memory.buffer, out[output.pointer], n);
    results.push([status, out[output.dims], y.reduce((a, b) => a + b, 0)]);
  }
  console.log(JSON.stringify(results));
})();
"""


def test_a_program_in_v8(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (tmp_path / "program").write_bytes(program(ADD_ONE))
    (tmp_path / "kernels").write_bytes(wasm())
    layout = {}
    for name, fields in (("input", isa.INPUT_FIELDS), ("output", isa.OUTPUT_FIELDS)):
        offsets, words = isa.layout(fields)
        layout[name] = offsets | {"words": words}
    described = json.dumps(layout | {"dtype": isa.DTYPE_NUMBER["f32"]})
    paths = [str(VM / "vm.wasm"), str(tmp_path / "program"), str(tmp_path / "kernels")]
    command = [node, "-e", SCRIPT, "--", *paths, str(COUNT), described]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == [[0, n, n * (n + 1) / 2] for n in (3, 0, 200_000, 3)]

import { describe, expect, it } from 'vitest';
import { EdgeRelaxError } from '../src/errors.ts';
import type { Dim, TensorInfo } from '../src/manifest.ts';
import { elementBytes, fromBytes, type Input, readInput } from '../src/tensors.ts';

const spec = (dtype: string, shape: readonly Dim[] | null): TensorInfo => ({
  name: 'x',
  dtype,
  shape,
});

function read(dtype: string, shape: readonly Dim[] | null, value: Input): [unknown, number[]] {
  const { data, shape: sizes } = readInput(spec(dtype, shape), value);
  return [data, sizes];
}

function refusal(dtype: string, shape: readonly Dim[] | null, value: unknown): string {
  try {
    readInput(spec(dtype, shape), value as Input);
  } catch (error) {
    expect(error).toBeInstanceOf(EdgeRelaxError);
    expect((error as EdgeRelaxError).code).toBe('input');
    expect((error as Error).message).toContain("input 'x'");
    return (error as Error).message;
  }
  throw new Error('it was accepted');
}

describe('shapes', () => {
  it('takes data with sizes as they are, without a copy', () => {
    const data = new Float32Array(6);
    const result = readInput(spec('f32', ['n', 3]), { data, shape: [2, 3] });
    expect(result.data).toBe(data);
    expect(result.shape).toEqual([2, 3]);
  });

  it('does not keep the list of sizes that it was given', () => {
    const shape = [2];
    const result = readInput(spec('f32', ['n']), { data: new Float32Array(2), shape });
    shape[0] = 9;
    expect(result.shape).toEqual([2]);
  });

  it.each<[readonly Dim[], number, number[]]>([
    [[2, 3], 6, [2, 3]],
    [['n', 3], 6, [2, 3]],
    [['n', 3], 0, [0, 3]],
    [['n'], 5, [5]],
    [[2, '2*n + 1'], 10, [2, 5]],
    [[], 1, []],
  ])('fills %j from %i flat elements', (dims, count, sizes) => {
    expect(read('f32', dims, new Float32Array(count))[1]).toEqual(sizes);
  });

  it.each<[readonly Dim[] | null, number, string]>([
    [['n', 'm'], 6, 'give { data, shape }'],
    [['n', 4], 6, 'give { data, shape }'],
    [['n', 0], 0, 'give { data, shape }'],
    [null, 6, 'a shape must be given'],
    [[2, 4], 6, '6 elements do not fill the shape [2, 4]'],
    [[], 2, '2 elements do not fill the shape []'],
  ])('refuses to guess %j from %i elements', (dims, count, message) => {
    expect(refusal('f32', dims, new Float32Array(count))).toContain(message);
  });

  it('takes any rank where the model does not say', () => {
    expect(read('f32', null, { data: new Float32Array(4), shape: [1, 2, 2] })[1]).toEqual([
      1, 2, 2,
    ]);
  });

  it.each([
    ['another rank', [4], 'rank 1, expected rank 2'],
    ['too few elements', [2, 3], '4 elements do not fill the shape [2, 3]'],
    ['a negative size', [-2, -2], 'is no list of sizes'],
    ['a fraction', [0.5, 8], 'is no list of sizes'],
    ['NaN', [NaN, 2], 'is no list of sizes'],
    ['an unsafe size', [2 ** 60, 0], 'is no list of sizes'],
  ])('refuses %s', (_, shape, message) => {
    const value = { data: new Float32Array(4), shape };
    expect(refusal('f32', ['n', 2], value)).toContain(message);
  });

  it('reads nested lists', () => {
    const lists = [
      [1, 2, 3],
      [4, 5, 6],
    ];
    expect(read('f32', ['n', 3], lists)).toEqual([Float32Array.of(1, 2, 3, 4, 5, 6), [2, 3]]);
    expect(read('i64', ['n', 'm'], [[7], [8]])).toEqual([BigInt64Array.of(7n, 8n), [2, 1]]);
    expect(read('i64', ['n', 'm'], [[2n ** 53n + 1n]])[0]).toEqual(
      BigInt64Array.of(2n ** 53n + 1n),
    );
    expect(read('bool', ['n', 'm'], [[true, false]])).toEqual([Uint8Array.of(1, 0), [1, 2]]);
    expect(read('f32', ['n', 'm'], [[], []])[1]).toEqual([2, 0]);
  });

  it('refuses lists of different lengths or depths', () => {
    expect(refusal('f32', ['n', 'm'], [[1, 2], [3]])).toContain('different lengths');
    expect(refusal('f32', ['n', 'm'], [[1, 2], 3])).toContain('different');
    expect(refusal('f32', ['n', 'm'], [[[1], 2]])).toContain('different');
  });
});

describe('scalars', () => {
  it.each<[string, Input, unknown]>([
    ['f32', 1.5, Float32Array.of(1.5)],
    ['i64', 3, BigInt64Array.of(3n)],
    ['i64', 3n, BigInt64Array.of(3n)],
    ['i32', 3n, Int32Array.of(3)],
    ['bool', true, Uint8Array.of(1)],
    ['f64', -0, Float64Array.of(-0)],
  ])('reads a %s from %s', (dtype, value, data) => {
    expect(read(dtype, [], value)).toEqual([data, []]);
    expect(read(dtype, ['n', 1], value)).toEqual([data, [1, 1]]);
  });
});

describe('dtypes', () => {
  it.each<[string, Input, unknown]>([
    ['f32', [1, 2.5], Float32Array.of(1, 2.5)],
    ['f32', Float64Array.of(0.5), Float32Array.of(0.5)],
    ['f64', Float32Array.of(0.5), Float64Array.of(0.5)],
    ['f16', Uint16Array.of(0x3c00), Uint16Array.of(0x3c00)],
    ['bf16', Uint16Array.of(0x3f80), Uint16Array.of(0x3f80)],
    ['i64', [1, -2], BigInt64Array.of(1n, -2n)],
    ['i64', Int32Array.of(5), BigInt64Array.of(5n)],
    ['i64', [2n ** 63n - 1n], BigInt64Array.of(2n ** 63n - 1n)],
    ['u64', [2n ** 64n - 1n], BigUint64Array.of(2n ** 64n - 1n)],
    ['i32', BigInt64Array.of(-7n), Int32Array.of(-7)],
    ['i32', Uint8Array.of(200), Int32Array.of(200)],
    ['i16', [-32768], Int16Array.of(-32768)],
    ['i8', [-128, 127], Int8Array.of(-128, 127)],
    ['u32', [2 ** 32 - 1], Uint32Array.of(2 ** 32 - 1)],
    ['u16', [65535], Uint16Array.of(65535)],
    ['u8', [0, 255], Uint8Array.of(0, 255)],
    ['bool', [0, 1], Uint8Array.of(0, 1)],
  ])('gives %s from %s', (dtype, value, data) => {
    expect(read(dtype, ['n'], value)[0]).toEqual(data);
  });

  it.each<[string, unknown, string]>([
    ['i8', [128], 'element 0 is 128, outside the range of i8'],
    ['u8', [3, -1], 'element 1 is -1, outside the range of u8'],
    ['i32', [2 ** 31], 'outside the range of i32'],
    ['i32', BigInt64Array.of(2n ** 40n), 'outside the range of i32'],
    ['i64', [2n ** 63n], 'outside the range of i64'],
    ['u64', [-1], 'outside the range of u64'],
    ['i64', [1.5], 'not an integer'],
    ['i32', [NaN], 'not an integer'],
    ['i64', Float32Array.of(1), 'Float32Array does not fit the dtype i64'],
    ['u8', Float32Array.of(1), 'Float32Array does not fit the dtype u8'],
    ['f32', Int32Array.of(1), 'Int32Array does not fit the dtype f32'],
    ['f32', BigInt64Array.of(1n), 'BigInt64Array does not fit the dtype f32'],
    ['f32', [1n], 'element 0, 1 (bigint), is no number'],
    ['f32', ['2'], 'element 0, 2 (string), is no number'],
    ['f32', [undefined], 'is no number'],
    ['i32', ['2'], 'is no number'],
    ['bool', [2], 'outside the range of bool'],
    ['bool', Uint8Array.of(2), 'outside the range of bool'],
    ['f16', Int16Array.of(1), 'Int16Array does not fit the dtype f16'],
    ['bf16', [1], 'does not fit the dtype bf16'],
  ])('refuses %s from %s', (dtype, value, message) => {
    expect(refusal(dtype, ['n'], value)).toContain(message);
  });

  it.each([
    ['null', null],
    ['a string', 'abc'],
    ['a plain object', {}],
    ['an object with neither', { data: 1, shape: 2 }],
    ['a function', () => 1],
    ['a buffer', new ArrayBuffer(4)],
  ])('refuses %s', (_, value) => {
    refusal('f32', ['n'], value);
  });

  it('says which dtypes it does not know', () => {
    expect(() => elementBytes('complex64')).toThrow('dtype complex64 is not known');
  });

  it('leaves a view of a larger buffer a view', () => {
    const whole = Float32Array.of(0, 1, 2, 3);
    const { data } = readInput(spec('f32', ['n']), whole.subarray(1, 3));
    expect(data).toEqual(Float32Array.of(1, 2));
    expect(data.buffer).toBe(whole.buffer);
  });

  it('owns the bytes of an output', () => {
    const buffer = Float32Array.of(1, 2).buffer;
    expect(fromBytes('f32', buffer)).toEqual(Float32Array.of(1, 2));
    expect(fromBytes('f16', buffer)).toBeInstanceOf(Uint16Array);
  });
});

describe('half floats', () => {
  const scope = globalThis as { Float16Array?: unknown };

  it('takes Float16Array where there is one, else asks for bits', () => {
    const Half = scope.Float16Array as (new (values: number[]) => object) | undefined;
    if (Half) {
      expect(read('f16', ['n'], new Half([1, -2]) as Input)[0]).toEqual(
        Uint16Array.of(0x3c00, 0xc000),
      );
      expect(read('f16', ['n'], [1, 65504])[0]).toEqual(Uint16Array.of(0x3c00, 0x7bff));
    }
    const saved = scope.Float16Array;
    delete scope.Float16Array;
    try {
      expect(refusal('f16', ['n'], [1])).toContain('give the bits as Uint16Array');
    } finally {
      if (saved) scope.Float16Array = saved;
    }
  });
});

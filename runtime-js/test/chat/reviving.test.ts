import { expect, it } from 'vitest';
import { Reviving } from '../../src/chat/reviving.ts';
import { EdgeRelaxError } from '../../src/errors.ts';
import type { Backend, Model } from '../../src/model.ts';

/** A model that loses its device at the first run, and says what it was asked for. */
function model(backend: Backend, reload: () => Promise<void> = async () => undefined) {
  const calls: string[] = [];
  const made = {
    backend,
    run: async () => {
      calls.push('run');
      if (calls.length === 1) throw new EdgeRelaxError('lost', 'the device was lost');
      return {};
    },
    reload: () => (calls.push('reload'), reload()),
  };
  return { calls, reviving: new Reviving(made as unknown as Model) };
}

it('loads a model anew once after its device was lost, however many ask', async () => {
  const { calls, reviving } = model('webgpu');
  await reviving.revive();
  await expect(reviving.run({}, {})).rejects.toThrow('lost');
  await Promise.all([reviving.revive(), reviving.revive()]);
  await reviving.run({}, {});
  expect(calls).toEqual(['run', 'reload', 'run']);
});

it('tries again where loading failed', async () => {
  let failures = 1;
  const { calls, reviving } = model('webgpu', async () => {
    if (failures-- > 0) throw new Error('no adapter');
  });
  await expect(reviving.run({}, {})).rejects.toThrow('lost');
  await expect(reviving.revive()).rejects.toThrow('no adapter');
  await reviving.revive();
  expect(calls).toEqual(['run', 'reload', 'reload']);
});

it('lets a page have its turn between runs that compute on its thread', async () => {
  const { reviving } = model('wasm');
  await expect(reviving.run({}, {})).rejects.toThrow('lost');
  const { port1, port2 } = new MessageChannel();
  let seen = false;
  port1.onmessage = () => (seen = true);
  port2.postMessage(null);
  for (let k = 0; k < 100 && !seen; k++) await reviving.run({}, {});
  expect(seen).toBe(true);
  port1.close();
});

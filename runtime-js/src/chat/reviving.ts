/** A model that comes back after its device was lost. */

import { EdgeRelaxError } from '../errors.ts';
import type { Model, Outputs, RunOptions } from '../model.ts';
import type { TensorData } from '../tensors.ts';
import { turn } from './turn.ts';

export class Reviving {
  readonly #model: Model;
  #lost = false;

  constructor(model: Model) {
    this.#model = model;
  }

  /** As the model's; where it computes on this thread, others have their turn behind it. */
  async run(inputs: Record<string, TensorData>, options: RunOptions): Promise<Outputs> {
    try {
      const results = await this.#model.run(inputs, options);
      if (this.#model.backend === 'wasm') await turn();
      return results;
    } catch (error) {
      this.#lost ||= error instanceof EdgeRelaxError && error.code === 'lost';
      throw error;
    }
  }

  /** Loads the model anew if its device was lost; what its states held is lost. */
  async revive(): Promise<void> {
    if (!this.#lost) return;
    this.#lost = false; // others that come meanwhile wait behind the reload
    try {
      await this.#model.reload();
    } catch (error) {
      this.#lost = true;
      throw error;
    }
  }
}

/** Reads of what the GPU computes, through buffers that the CPU may map. */

/**
 * So many are asked for at once. Asking costs a message to the browser's GPU process, unless it goes
 * with a submission: one beyond these waits for the next.
 */
const ASKED = 2;

/** What reads need of a device. */
export interface Host {
  readonly make: (bytes: number) => GPUBuffer;
  readonly free: (buffer: GPUBuffer) => void;
  /** Throws where what was read comes of buffers that never were. */
  readonly checked: () => Promise<void>;
}

export class Reads {
  readonly #host: Host;
  readonly #idle: GPUBuffer[] = []; // that nothing is being read through
  readonly #waiting: (() => void)[] = [];
  #asked = 0;

  constructor(host: Host) {
    this.#host = host;
  }

  /** A buffer to read through: there are as many as reads at once. */
  take(bytes: number): GPUBuffer {
    const found = this.#idle.findIndex((buffer) => buffer.size >= bytes);
    const [idle] = this.#idle.splice(Math.max(found, 0), 1);
    if (idle && found >= 0) return idle;
    if (idle) this.#host.free(idle); // too small
    return this.#host.make(bytes);
  }

  /** Asks for all that wait. To be called before a submission. */
  ask(): void {
    for (const ask of this.#waiting.splice(0)) ask();
  }

  /** What `take` makes of the first bytes of a buffer that is written by what was submitted. */
  read<T>(staging: GPUBuffer, size: number, take: (bytes: ArrayBuffer) => T): Promise<T> {
    return new Promise((resolve, reject) => {
      const ask = (): void => void this.#map(staging, size, take).then(resolve, reject);
      if (this.#asked < ASKED) ask();
      else this.#waiting.push(ask);
    });
  }

  async #map<T>(staging: GPUBuffer, size: number, take: (bytes: ArrayBuffer) => T): Promise<T> {
    this.#asked++;
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size);
      await this.#host.checked();
      const found = take(staging.getMappedRange(0, size));
      staging.unmap();
      this.#idle.push(staging);
      return found;
    } catch (error) {
      this.#host.free(staging);
      throw error;
    } finally {
      if (--this.#asked < ASKED) this.ask();
    }
  }
}

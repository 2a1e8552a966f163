/** What this browser offers, and a device that fits an artifact. */

import { EdgeRelaxError } from './errors.ts';
import type { Manifest } from './manifest.ts';

export interface Capabilities {
  readonly webgpu: boolean;
  /** A GPU played by a CPU (SwiftShader, llvmpipe): slower than WebAssembly. */
  readonly software: boolean;
  readonly description: string;
  readonly features: readonly string[];
}

/** What `load` would find. Never throws. */
export async function capabilities(): Promise<Capabilities> {
  const adapter = await findAdapter(undefined);
  if (!adapter) return { webgpu: false, software: false, description: '', features: [] };
  return {
    webgpu: true,
    software: isSoftware(adapter),
    description: describe(adapter),
    features: [...adapter.features].sort(),
  };
}

export async function findAdapter(
  preference: GPUPowerPreference | undefined,
): Promise<GPUAdapter | undefined> {
  const gpu = globalThis.navigator?.gpu as GPU | undefined;
  if (!gpu) return undefined;
  try {
    const options = preference ? { powerPreference: preference } : {};
    return (await gpu.requestAdapter(options)) ?? undefined;
  } catch {
    return undefined; // a browser that has the API but may not use it
  }
}

export function isSoftware(adapter: GPUAdapter): boolean {
  const info = adapter.info as GPUAdapterInfo & { isFallbackAdapter?: boolean };
  return (
    info.isFallbackAdapter === true || /swiftshader|llvmpipe|basic render/i.test(describe(adapter))
  );
}

function describe(adapter: GPUAdapter): string {
  const { vendor, architecture, device, description } = adapter.info;
  return [vendor, architecture, device, description].filter(Boolean).join(' ');
}

/** A device with the artifact's limits and features; throws `limit` naming what is too small. */
export async function requestDevice(adapter: GPUAdapter, manifest: Manifest): Promise<GPUDevice> {
  checkNeeds(adapter, manifest);
  return adapter.requestDevice({
    requiredFeatures: manifest.needs.features as GPUFeatureName[],
    requiredLimits: { ...manifest.needs.limits },
  });
}

/** Checks an adapter, or a device that the caller brings. */
export function checkNeeds(holder: GPUAdapter | GPUDevice, manifest: Manifest): void {
  for (const [name, need] of Object.entries(manifest.needs.limits)) {
    const have = (holder.limits as unknown as Record<string, number>)[name] ?? 0;
    if (have < need) {
      throw new EdgeRelaxError(
        'limit',
        `${name} is ${have} here, the model needs ${need}; use backend 'wasm' or smaller bounds`,
      );
    }
  }
  for (const feature of manifest.needs.features) {
    if (!holder.features.has(feature)) {
      throw new EdgeRelaxError('limit', `this GPU has no ${feature}; use backend 'wasm'`);
    }
  }
}

/** What this browser offers. */

import type { Offer } from './choose.ts';
import type { ProgramInfo } from './manifest.ts';

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
    description: describe(adapter.info),
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

/** An adapter, or a device that the caller brings; older browsers tell less of either. */
type Holder = Pick<GPUAdapter, 'features' | 'limits'> & {
  readonly info?: GPUAdapterInfo & { readonly isFallbackAdapter?: boolean };
  readonly adapterInfo?: GPUAdapterInfo & { readonly isFallbackAdapter?: boolean };
  readonly isFallbackAdapter?: boolean;
};

export function isSoftware(holder: Holder): boolean {
  const info = holder.info ?? holder.adapterInfo;
  if (holder.isFallbackAdapter || info?.isFallbackAdapter) return true;
  return /swiftshader|llvmpipe|basic render/i.test(describe(info));
}

function describe(info: GPUAdapterInfo | undefined): string {
  const { vendor, architecture, device, description } = info ?? {};
  return [vendor, architecture, device, description].filter(Boolean).join(' ');
}

/** What a GPU has for the programs made for one. */
export function gpuOffer(holder: Holder): Offer {
  return {
    device: 'gpu',
    adapter: isSoftware(holder) ? 'software' : 'gpu',
    features: new Set([...holder.features, ...wasmFeatures()]),
    limits: holder.limits as unknown as Record<string, number>,
  };
}

/** What WebAssembly has here. */
export function cpuOffer(): Offer {
  return { device: 'cpu', adapter: null, features: wasmFeatures(), limits: {} };
}

// (module (func (result v128) i32.const 0 i8x16.splat (three times) i32x4.relaxed_laneselect))
const RELAXED = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15,
  65, 0, 253, 15, 65, 0, 253, 15, 253, 139, 2, 11,
];

function wasmFeatures(): Set<string> {
  return new Set(WebAssembly.validate(new Uint8Array(RELAXED)) ? ['relaxed-simd'] : []);
}

/** A device with the features and limits that a program needs of its adapter. */
export async function requestDevice(
  adapter: GPUAdapter,
  { needs }: ProgramInfo,
): Promise<GPUDevice> {
  const features = needs.features.filter((name) => adapter.features.has(name));
  return adapter.requestDevice({
    requiredFeatures: features as GPUFeatureName[],
    requiredLimits: { ...needs.limits },
  });
}

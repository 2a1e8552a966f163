/** What browsers may lack of WGSL's language, written out. */

const DOT = 'dot4I8Packed';
const DOT_FEATURE = 'packed_4x8_integer_dot_product';
/** Declarations of a module shadow built-in functions, so that it may stand where there is one. */
const DOT_WRITTEN_OUT = `
fn ${DOT}(a: u32, b: u32) -> i32 {
  let x = vec4<i32>(vec4<u32>(a, a << 8u, a << 16u, a << 24u)) >> vec4<u32>(24u);
  let y = vec4<i32>(vec4<u32>(b, b << 8u, b << 16u, b << 24u)) >> vec4<u32>(24u);
  return dot(x, y);
}
`;

/** A kernel's module for a browser: with the functions that it calls and the browser does not have. */
export function forBrowser(code: string, features = languageFeatures()): string {
  return code.includes(DOT) && !features?.has(DOT_FEATURE) ? code + DOT_WRITTEN_OUT : code;
}

function languageFeatures(): WGSLLanguageFeatures | undefined {
  return (globalThis.navigator?.gpu as GPU | undefined)?.wgslLanguageFeatures;
}

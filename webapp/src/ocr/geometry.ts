/** Plane geometry of text boxes. Points are pixel centres. */

export type Point = readonly [x: number, y: number];
export type Quad = readonly [Point, Point, Point, Point];

/** The corners of the convex hull in order, none of them on a straight edge. */
export function convexHull(points: readonly Point[]): Point[] {
  const sorted = [...points].sort((p, q) => p[0] - q[0] || p[1] - q[1]);
  const half = (ordered: readonly Point[]): Point[] => {
    const chain: Point[] = [];
    for (const point of ordered) {
      while (chain.length > 1 && turn(chain.at(-2)!, chain.at(-1)!, point) <= 0) chain.pop();
      chain.push(point);
    }
    return chain.slice(0, -1);
  };
  if (sorted.length < 2) return sorted;
  return [...half(sorted), ...half(sorted.reverse())];
}

/** Positive where a, b, c turn from x towards y. */
function turn(a: Point, b: Point, c: Point): number {
  return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
}

/** A rectangle at any angle: `along` is the unit vector of its width. */
export interface Rectangle {
  readonly centre: Point;
  readonly along: Point;
  readonly width: number;
  readonly height: number;
}

/** The smallest rectangle around points: one of its sides lies on a side of their hull. */
export function smallestRectangle(points: readonly Point[]): Rectangle {
  const hull = convexHull(points);
  let best: Rectangle | undefined;
  hull.forEach((corner, k) => {
    const next = hull[(k + 1) % hull.length]!;
    const length = Math.hypot(next[0] - corner[0], next[1] - corner[1]) || 1;
    const along: Point = [(next[0] - corner[0]) / length, (next[1] - corner[1]) / length];
    const found = rectangleAlong(hull, along);
    if (!best || found.width * found.height < best.width * best.height) best = found;
  });
  return best ?? { centre: [0, 0], along: [1, 0], width: 0, height: 0 };
}

function rectangleAlong(hull: readonly Point[], along: Point): Rectangle {
  const [ux, uy] = along[0] || along[1] ? along : [1, 0];
  const across = hull.map(([x, y]) => x * ux + y * uy);
  const down = hull.map(([x, y]) => y * ux - x * uy);
  const [left, right] = [Math.min(...across), Math.max(...across)];
  const [top, bottom] = [Math.min(...down), Math.max(...down)];
  const [u, v] = [(left + right) / 2, (top + bottom) / 2];
  return {
    centre: [u * ux - v * uy, u * uy + v * ux],
    along: [ux, uy],
    width: right - left,
    height: bottom - top,
  };
}

/** Grows on every side by area × ratio / perimeter, which undoes the shrinking of training labels. */
export function unclip(rectangle: Rectangle, ratio: number): Rectangle {
  const { width, height } = rectangle;
  const margin = (width * height * ratio) / (2 * (width + height) || 1);
  return { ...rectangle, width: width + 2 * margin, height: height + 2 * margin };
}

export function cornersOf({ centre, along, width, height }: Rectangle): Quad {
  const [[x, y], [ux, uy], w, h] = [centre, along, width / 2, height / 2];
  const corner = (s: number, t: number): Point => [
    x + s * w * ux - t * h * uy,
    y + s * w * uy + t * h * ux,
  ];
  return [corner(-1, -1), corner(1, -1), corner(1, 1), corner(-1, 1)];
}

/** The same corners from the top left one clockwise, as the text is most likely to stand. */
export function clockwise(quad: Quad): Quad {
  const [a, b, c, d] = [...quad].sort((p, q) => p[0] - q[0]) as [Point, Point, Point, Point];
  const [topLeft, bottomLeft] = a[1] <= b[1] ? [a, b] : [b, a];
  const [topRight, bottomRight] = c[1] <= d[1] ? [c, d] : [d, c];
  return [topLeft, topRight, bottomRight, bottomLeft];
}

/** True inside a convex quadrilateral and up to half a pixel outside. */
export function contains(quad: Quad, x: number, y: number): boolean {
  const sense = Math.sign(turn(quad[0], quad[1], quad[2])) || 1;
  return quad.every((corner, k) => {
    const next = quad[(k + 1) % 4]!;
    const length = Math.hypot(next[0] - corner[0], next[1] - corner[1]) || 1;
    return (sense * turn(corner, next, [x, y])) / length >= -0.5;
  });
}

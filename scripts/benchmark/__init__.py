"""Side-by-side measurements of edgerelax and ONNX Runtime; `scripts/bench` runs them."""

"""What makes modules: ONNX files and the module builder."""

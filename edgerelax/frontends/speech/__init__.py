"""Models that hear: audio front ends, encoders, and decoders that attend to what was heard."""

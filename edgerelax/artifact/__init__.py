"""The artifact folder: manifest, weights, packing, loading."""

"""Language models: their sizes, their architectures, and the modules that they become."""

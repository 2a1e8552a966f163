"""The virtual machine: C sources, the instruction table and the prebuilt `vm.wasm`."""

"""Which variant of an artifact runs here: the first whose needs a machine meets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgerelax.artifact.manifest import Manifest, ProgramInfo
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Offer:
    """What a machine has for the programs of one device, by WebGPU's names.

    `adapter` is the class of the GPU adapter, None for the CPU.
    """

    device: str
    adapter: str | None = None
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)

    def lacks(self, program: ProgramInfo) -> str | None:
        """What keeps a program of the device from running here; None if nothing does."""
        for name, need in program.needs.limits.items():
            have = self.limits.get(name)
            if have is None:
                return f"it needs the limit {name}, unknown to this host"
            if have < need:
                return f"the adapter's {name} is {have}, it needs {need}"
        missing = [f for f in program.needs.features if f not in self.features]
        return f"there is no {', '.join(missing)} here" if missing else None


def candidates(
    manifest: Manifest, device: str | None = None, variant: str | None = None
) -> list[ProgramInfo]:
    """The programs of a device (None: of all), or the one of that name.

    Raises FormatError where the device has none, InputError for an unknown name.
    """
    found = manifest.programs if variant is None else [manifest.program(variant)]
    fitting = [p for p in found if device is None or p.device == device]
    if variant is not None and not fitting:
        raise InputError(f"variant {variant!r} is for the {found[0].device}, not the {device}")
    if not fitting:
        offered = ", ".join(dict.fromkeys(p.device for p in found))
        raise FormatError(
            f"this artifact has no program for {device}, only for {offered}",
            hint=f"export it with a target that includes {device}",
        )
    return fitting


def choose(programs: Sequence[ProgramInfo], offers: Sequence[Offer]) -> ProgramInfo:
    """The first program that fits, preferably one made for the adapter's class.

    Raises UnsupportedError that says of each why it does not.
    """
    by_device = {offer.device: offer for offer in offers}
    lacks: dict[str, str] = {}
    fitting: list[ProgramInfo] = []
    for program in programs:
        offer = by_device.get(program.device)
        lack = "no GPU adapter was found" if offer is None else offer.lacks(program)
        if lack is None:
            fitting.append(program)
        else:
            lacks[program.name] = lack
    if fitting:
        made_for = (p for p in fitting if p.adapter == by_device[p.device].adapter)
        return next(made_for, fitting[0])
    if set(lacks.values()) == {"no GPU adapter was found"}:
        raise UnsupportedError(
            "no GPU adapter was found",
            hint="install a Vulkan, Metal or D3D12 driver, or use --device cpu",
        )
    raise UnsupportedError(
        "no variant fits: " + "; ".join(f"{name}: {why}" for name, why in lacks.items()),
        hint="use --device cpu, or export with smaller --dim bounds",
    )

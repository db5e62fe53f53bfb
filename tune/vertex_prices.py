"""What a Vertex AI cluster costs per hour, from public list prices: an estimate to decide by, no bill.

US dollars, on demand, region us-central1, as of 2026. Sources:
- Rates of vCPUs, memory and GPUs: Compute Engine's list (cloud.google.com/compute/all-pricing), as republished in the
  SkyPilot catalogue; its prices of n2, g2, a2 and a3 machines are met to the last digit.
- Vertex AI's surcharge of 15 %: its list (cloud.google.com/vertex-ai/pricing, training, read on 7 October 2026 and, for
  the T4, earlier) asks 0.21849885 for n1-standard-4 and 0.4025 for a T4; Compute Engine asks 0.189999 and 0.35.

Not verified: that Ray clusters are charged as custom training is; the surcharge for the other families (the list gives
the H100 at Compute Engine's price, so the surcharge may be a line of its own); the V100, from an older list. Not
included: disks, network, logging, discounts, and that most other regions ask more, some by half. What is not in the
table has no price here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tune.vertex_machines import MACHINES

AS_OF = "2026"
SURCHARGE = 0.15
_REGION = "us-central1"
_CPU_AND_GIB = {
    "n1": (0.031611, 0.004237),
    "n2": (0.031611, 0.004237),
    "g2": (0.024988, 0.002927),
    "a2": (0.031611, 0.004237),
    "a3": (1.18251 / 26, 0.0),  # memory goes with the vCPUs and is in their rate
}
"""USD per hour of one vCPU and of one GiB, by family."""
_GPUS = {
    "NVIDIA_TESLA_T4": 0.35,
    "NVIDIA_TESLA_V100": 2.48,
    "NVIDIA_L4": 0.560040239,
    "NVIDIA_TESLA_A100": 2.933908,
    "NVIDIA_A100_80GB": 3.92808,
    "NVIDIA_H100_80GB": 9.796550569,
}
"""USD per hour of one GPU."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Dollars an hour, and what has no price and is therefore not in them."""

    usd: float
    unknown: tuple[str, ...] = ()
    upto: float | None = None
    """With autoscaling: the cost when every pool has its most machines."""

    def show(self) -> str:
        """As `$3.61 an hour`, `$3.61 to $7.22 an hour` or `unknown: no list price for X`."""
        if self.unknown:
            known = f" (the rest costs ${self.usd:.2f} an hour)" if self.usd else ""
            return f"unknown: no list price for {', '.join(self.unknown)}{known}"
        upto = "" if self.upto is None else f" to ${self.upto:.2f}"
        return f"${self.usd:.2f}{upto} an hour"


def machine_cost(machine_type: str, gpu: str | None, gpus: int) -> Cost:
    """List price of one machine for an hour on Vertex AI in us-central1.

    Args:
        machine_type: as `n1-standard-16`.
        gpu: as `NVIDIA_TESLA_T4`; None for none.
        gpus: GPUs of the machine.
    """
    machine = MACHINES.get(machine_type)
    rates = _CPU_AND_GIB.get(machine_type.partition("-")[0])
    unknown = []
    if machine is None or rates is None:
        unknown.append(machine_type)
    if gpu is not None and gpus and gpu not in _GPUS:
        unknown.append(gpu)
    if machine is None or rates is None or unknown:
        return Cost(0.0, tuple(unknown))
    usd = machine.vcpus * rates[0] + machine.memory * rates[1] + (gpus * _GPUS[gpu] if gpu else 0.0)
    return Cost(usd * (1 + SURCHARGE))


def total(costs: Iterable[tuple[Cost, int, int]]) -> Cost:
    """The sum over pools: each one's machine, its fewest machines and its most machines."""
    pools = list(costs)
    unknown = tuple(dict.fromkeys(name for cost, _, most in pools if most for name in cost.unknown))
    low = sum(cost.usd * fewest for cost, fewest, _ in pools)
    high = sum(cost.usd * most for cost, _, most in pools)
    return Cost(low, unknown, high if high > low else None)


def price_note(location: str) -> str:
    """What the dollars are: which list, as of when, and what is not in them."""
    elsewhere = "" if location == _REGION else f"; {location} may cost more"
    return (
        f"list price of {_REGION} as of {AS_OF} with Vertex AI's {SURCHARGE:.0%}, without disks, network and "
        f"discounts{elsewhere}"
    )

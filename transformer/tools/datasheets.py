"""What vendors print about their accelerators: rates and memory, for bounds and shares.

These are not measurements: wherever they are printed, what a device reaches is beside
them.
"""

from __future__ import annotations

from typing import NamedTuple


class Datasheet(NamedTuple):
    """What one device, as JAX counts devices, can do at most.

    Attributes:
      operations: of dense products of bfloat16 matrices with float32 sums, per second;
        a multiply-add counts as 2. Of float32 where a device has no such units.
      bandwidth: bytes moved between the device and its memory per second.
      memory: bytes.
    """

    operations: float
    bandwidth: float
    memory: float


_GB, _GIB = 1e9, 2.0**30

# By `jax.Device.device_kind`. Vendors often print rates for matrices that are half
# zeros: these are without zeros, half of what is printed.
DATASHEETS = {
    # cloud.google.com/tpu/docs/v2 ... v6e, "key specifications". JAX sees each of the
    # two cores of a v2 or v3 chip as a device.
    "TPU v2": Datasheet(45e12 / 2, 700e9 / 2, 16 * _GIB / 2),
    "TPU v3": Datasheet(123e12 / 2, 900e9 / 2, 32 * _GIB / 2),
    "TPU v4": Datasheet(275e12, 1200e9, 32 * _GIB),
    "TPU v5 lite": Datasheet(197e12, 819e9, 16 * _GIB),
    "TPU v5": Datasheet(459e12, 2765e9, 95 * _GIB),
    "TPU v6 lite": Datasheet(918e12, 1638e9, 32 * _GIB),
    # nvidia.com, "Tesla V100" and "T4" datasheets: no bfloat16, so float32's rate.
    "Tesla V100-SXM2-16GB": Datasheet(15.7e12, 900e9, 16 * _GB),
    "Tesla T4": Datasheet(8.1e12, 320e9, 16 * _GB),
    # "A100 Tensor Core GPU" datasheets of 2020 (40 GB) and 2021 (80 GB).
    "NVIDIA A100-SXM4-40GB": Datasheet(312e12, 1555e9, 40 * _GB),
    "NVIDIA A100-PCIE-40GB": Datasheet(312e12, 1555e9, 40 * _GB),
    "NVIDIA A100-SXM4-80GB": Datasheet(312e12, 2039e9, 80 * _GB),
    "NVIDIA A100 80GB PCIe": Datasheet(312e12, 1935e9, 80 * _GB),
    # "A10" and "L4", "L40S Tensor Core GPU" datasheets; "A10G" as Amazon's G5 has it.
    "NVIDIA A10": Datasheet(125e12, 600e9, 24 * _GB),
    "NVIDIA A10G": Datasheet(70e12, 600e9, 24 * _GB),
    "NVIDIA L4": Datasheet(121e12, 300e9, 24 * _GB),
    "NVIDIA L40S": Datasheet(362e12, 864e9, 48 * _GB),
    # "GA102" and "Ada GPU Architecture" white papers, rates with float32 sums.
    "NVIDIA GeForce RTX 3090": Datasheet(71e12, 936e9, 24 * _GB),
    "NVIDIA GeForce RTX 4090": Datasheet(165.2e12, 1008e9, 24 * _GB),
    # "H100" and "H200 Tensor Core GPU" datasheets.
    "NVIDIA H100 PCIe": Datasheet(756e12, 2e12, 80 * _GB),
    "NVIDIA H100 NVL": Datasheet(835e12, 3.9e12, 94 * _GB),
    "NVIDIA H100 80GB HBM3": Datasheet(989e12, 3.35e12, 80 * _GB),
    "NVIDIA H200": Datasheet(989e12, 4.8e12, 141 * _GB),
    # "HGX" datasheet: 18 petaflops of dense bfloat16 and 1.44 TB of memory on 8 GPUs.
    "NVIDIA B200": Datasheet(2250e12, 8e12, 180 * _GB),
}

# Short names of the same, as used when renting accelerators.
TARGETS = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "v100": "Tesla V100-SXM2-16GB",
    "t4": "Tesla T4",
    "a100": "NVIDIA A100-SXM4-40GB",
    "l4": "NVIDIA L4",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "b200": "NVIDIA B200",
}

# Newer names under which some versions of libtpu report a kind of device.
_ALSO = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}


def find(kind: str) -> Datasheet | None:
    """Return a device's datasheet, None where it is not known.

    Args:
      kind: ``jax.Device.device_kind``, or a short name of ``TARGETS``.
    """
    kind = TARGETS.get(kind, kind)
    return DATASHEETS.get(_ALSO.get(kind, kind))

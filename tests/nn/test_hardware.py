"""What a CPU can multiply is read from what its system says, on every kind of it."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from support.configs import base

from transformer import models, parallel
from transformer.nn import hardware, matmul
from transformer.run import provenance

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: {}\nflags\t\t: {}\n"
AMD = INTEL.replace("GenuineIntel", "AuthenticAMD")
ARM = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: {}\nCPU implementer\t: 0x41\n"
APPLE = "hw.optional.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\n{}hw.optional.neon: 1"
APPLE += "\nmachdep.cpu.cores_per_package: 8\nmachdep.cpu.brand_string: {}\n"

AVX2 = "fpu sse sse2 ssse3 fma sse4_1 sse4_2 movbe aes avx f16c rdrand avx2 bmi2 vaes"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
NEOVERSE = "fp asimd evtstrm aes pmull atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop"

KINDS = {
    "Sapphire Rapids": (
        INTEL.format(
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            f"{AVX512} avx_vnni avx512_bf16 avx512_vnni amx_bf16 avx512_fp16 amx_tile",
        ),
        True,
    ),
    "AMX alone": (INTEL.format("Intel(R) Xeon(R) 6", f"{AVX2} amx_bf16"), True),
    "Cooper Lake": (
        INTEL.format(
            "Intel(R) Xeon(R) Platinum 8375H CPU", f"{AVX512} avx512_vnni avx512_bf16"
        ),
        True,
    ),
    "Cascade Lake": (
        INTEL.format("Intel(R) Xeon(R) Gold 6248 CPU", f"{AVX512} avx512_vnni"),
        False,
    ),
    "Ice Lake, a laptop": (
        INTEL.format("Intel(R) Core(TM) i7-1065G7 CPU", f"{AVX512} avx512_vnni"),
        False,
    ),
    "Alder Lake, a laptop": (
        INTEL.format("12th Gen Intel(R) Core(TM) i7-1260P", f"{AVX2} avx_vnni"),
        False,
    ),
    "Rome": (AMD.format("AMD EPYC 7B12", f"{AVX2} sse4a"), False),
    "Milan": (AMD.format("AMD EPYC 7763 64-Core Processor", AVX2), False),
    "Genoa": (
        AMD.format(
            "AMD EPYC 9R14 96-Core Processor", f"{AVX512} avx512_bf16 avx512_vnni"
        ),
        True,
    ),
    "Graviton 2": (ARM.format(f"{NEOVERSE} asimddp ssbs"), False),
    "Graviton 3": (
        ARM.format(f"{NEOVERSE} asimddp sve uscat svei8mm svebf16 i8mm bf16 dgh rng"),
        True,
    ),
    "M1": (APPLE.format("hw.optional.arm.FEAT_BF16: 0\n", "Apple M1"), False),
    "M1, older system": (APPLE.format("", "Apple M1"), False),
    "M2": (APPLE.format("hw.optional.arm.FEAT_BF16: 1\n", "Apple M2"), True),
    "Intel Mac": ("hw.optional.avx2_0: 1\nmachdep.cpu.features: FPU SSE", False),
    "not known": ("", False),
    "another system": ("processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdc\n", False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_which_cpus_multiply_bfloat16(kind):
    text, expected = KINDS[kind]
    assert hardware.multiplies_bfloat16(hardware.cpu_features(text)) is expected


def test_features_are_whole_words_of_the_first_core():
    text, _ = KINDS["Milan"]
    assert hardware.cpu_features(text + KINDS["Genoa"][0]) == set(AVX2.split())
    # A mitigation or a comment that names one is no feature.
    other = f"{text}bugs\t\t: no_avx512_bf16 avx512_bf16\n"
    assert not hardware.multiplies_bfloat16(hardware.cpu_features(other))
    almost = text.replace("avx2", "avx512_bf16x")
    assert not hardware.multiplies_bfloat16(hardware.cpu_features(almost))


@pytest.mark.parametrize(
    "kind, name",
    [
        ("Milan", "AMD EPYC 7763 64-Core Processor"),
        ("M2", "Apple M2"),
        ("Graviton 3", None),
        ("not known", None),
    ],
)
def test_names_of_cpus(kind, name):
    assert hardware.cpu_model(KINDS[kind][0]) == name


@pytest.mark.parametrize(
    "text, version",
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
            "Release Build  (dvs-builder@U22)  Tue Sep 23 10:11:16 UTC 2025\n",
            "580.95.05",
        ),
        ("", None),
    ],
)
def test_versions_of_the_driver(text, version):
    assert hardware.driver_version(text) == version


@pytest.fixture
def described(monkeypatch):
    """Let this machine have another CPU, whose products the compiler knows."""

    def change(kind: str) -> hardware.Hardware:
        monkeypatch.setattr(hardware, "cpu_description", lambda: KINDS[kind][0])
        monkeypatch.setattr(matmul, "multiplies", lambda dtype: True)
        return hardware.of(jax.devices()[0])

    return change


@pytest.mark.parametrize(
    "kind, bfloat16, operands",
    [("Milan", False, "float32"), ("Genoa", True, "bfloat16")],
)
@pytest.mark.usefixtures("own_cache")
def test_operands_are_what_the_units_multiply(described, kind, bfloat16, operands):
    assert described(kind) == hardware.Hardware("cpu", bfloat16=bfloat16)
    assert described(kind).operands("bfloat16") == operands
    assert described(kind).operands("float32") == "float32"
    line = parallel.start("cpu")
    told = ", without bfloat16 units: operands stay float32; jax " in line
    assert told is not bfloat16
    assert provenance._operands("bfloat16") == operands
    assert provenance.machine()["cpu"]["model"].startswith("AMD EPYC")


@pytest.mark.parametrize("kind, operand", [("Milan", "f32"), ("Genoa", "bf16")])
def test_a_model_is_traced_with_them(described, kind, operand):
    sizes = {"model.d_model": 16, "model.d_ff": 24, "model.layers": 1}
    model = models.make(base(**sizes), 23, 23, hardware=described(kind))
    params, ids = models.abstract(model), jnp.ones((2, 3), jnp.int32)
    traced = jax.make_jaxpr(lambda p: model.apply({"params": p}, ids, ids))(params)
    assert ("bf16" in str(traced)) is (operand == "bf16")


# What the documentation tells to set for the same bits on a GPU.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize("flag, known", [(DETERMINISTIC, True), ("--xla_gpu_x", False)])
def test_the_flag_for_the_same_bits_is_one_of_xla_s(flag, known):
    run = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env=os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode == 0) is known
    assert ("Unknown flag" in run.stderr) is not known


def test_a_machine_is_what_decides_the_last_digits(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", DETERMINISTIC)
    found = provenance.machine()
    assert found["flags"]["XLA_FLAGS"] == DETERMINISTIC
    assert found["platform"] and found["compute_capability"] is None
    assert found["cpu"]["architecture"]
    assert len(found["devices"]) == len(jax.devices())
    assert found["versions"] == provenance.versions()


def test_the_libraries_of_an_accelerator_have_versions(tmp_path, monkeypatch):
    for name, version in (("nvidia_cudnn_cu13", "9.15"), ("other", "1")):
        metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        lines = "Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}"
        metadata.write_text("\n".join((*lines, f"Version: {version}", "")))
    monkeypatch.syspath_prepend(tmp_path)
    found = provenance.versions.__wrapped__()
    assert found["nvidia-cudnn-cu13"] == "9.15" and "jax" in found
    assert "other" not in found

"""What the section says about each piece: Markdown lines from its measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accelerator.comparisons import ALLOWED, STEPS

Lines = Callable[[Mapping[str, Any]], Iterator[str]]


def peaks_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write the rates of products and of memory, beside the datasheet's."""
    sheet = found["datasheet"]
    for dtype, rate in found["products"].items():
        line = f"Products of {found['size']} x {found['size']} {dtype}: {_tera(rate)}"
        if sheet and dtype == "bfloat16":
            line += f", {rate / sheet['operations']:.0%} of the datasheet's"
            line += f" {_tera(sheet['operations'])}"
        yield line + "."
    line = f"Memory: {found['bandwidth'] / 1e12:.2f} TB/s read and written"
    if sheet:
        line += f", {found['bandwidth'] / sheet['bandwidth']:.0%} of the datasheet's"
        line += f" {sheet['bandwidth'] / 1e12:.2f}"
    yield line + "."


def attention_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write a line for each case of the fused attention."""
    yield "| attention | taken | fused - float32 | unfused - float32 | |"
    yield "|---|---|---:|---:|---|"
    for name, case in found["cases"].items():
        taken = "fused" if case["taken"] else "unfused"
        verdict = "pass" if case["passed"] else "**FAIL**"
        if "refused" in case:
            yield f"| {name} | {taken} | refused: {case['refused']} | | {verdict} |"
            continue
        most = [max(case[kind].values()) for kind in ("fused", "unfused")]
        yield f"| {name} | {taken} | {most[0]:.1e} | {most[1]:.1e} | {verdict} |"


def dropout_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write whether the masks are a CPU's."""
    which = "those of a CPU" if found["passed"] else "**NOT those of a CPU**"
    yield f"Dropout masks are {which}."


def losses_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write how far the first losses are from a CPU's."""
    for dtype, allowed in ALLOWED.items():
        one = found[dtype]
        verdict = "" if one["passed"] else f", **more than {allowed}**"
        yield (
            f"The first {STEPS} losses of number words in {dtype} differ from a CPU's "
            f"by at most {one['difference']:.1e} nats per token{verdict}."
        )


def check_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write the last line of each check."""
    for name, said in found["said"].items():
        verdict = said.strip().splitlines()[-1]
        yield f"`transformer check --config=experiments/{name}`: {verdict}."


def scores_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write how long a training took, and its scores."""
    several = ", in several calls" if found["in several calls"] else ""
    yield (
        f"`{found['config']}`: {found['steps']:,} steps in "
        f"{found['training seconds']:.0f} s, compilation included{several}."
    )
    for which, one in found["scores"].items():
        bleu = ", ".join(f"{k} {v:.2f}" for k, v in one["bleu"].items())
        yield (
            f"{which}: {100 * one['exact']:.1f} % exact, perplexity "
            f"{one['perplexity']:.3f}, BLEU {bleu}."
        )


def resume_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write where a resumed run diverges from an uninterrupted one."""
    for flags, one in found["runs"].items():
        end = "the same bits as a run never stopped."
        if not one["same"]:
            end = (
                f"{one['arrays that differ']} of {one['arrays']} arrays differ, by at "
                f"most {one['largest difference']:.1e} of the largest number; metrics "
                f"from step {one['first step that differs']} on."
            )
        yield f"Killed and resumed, {flags}: {end}"


def steps_lines(config: str, steps: int) -> Lines:
    """Return a function that writes a line for each variant of a training step.

    Args:
      config: "base" or "big".
      steps: number of steps of a full training run, whose hours are reported.
    """

    def lines(found: Mapping[str, Any]) -> Iterator[str]:
        yield (
            f"| {config}, a side | | ms per step | target tokens/s | of the measured "
            f"peak | of the datasheet's | GB | {steps:,} steps, h |"
        )
        yield "|---|---|---:|---:|---:|---:|---:|---:|"
        for name, one in found["variants"].items():
            seconds = one["step, s (median)"]
            sheet = one.get("share of the datasheet's")
            memory = one.get("peak memory of the device, MB")
            cells = [
                one["batch"],
                name,
                f"{1e3 * seconds:.1f}",
                f"{one['real target tokens/s']:,.0f}",
                f"{one['share of that']:.0%}",
                "" if sheet is None else f"{sheet:.0%}",
                "" if memory is None else f"{memory / 1e3:.1f}",
                f"{steps * seconds / 3600:.2f}",
            ]
            yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)

    return lines


_BUSY = "share of the loop's time in such steps"
_IDLE = "share in which the device did, at most"


def loop_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write a line for each turn of the training loop."""
    yield (
        "| loop | first step after, s | ms per step | target tokens/s | in bare steps "
        "| "
        "waited for input, at most |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    for name, one in found["loops"].items():
        yield (
            f"| {name} | {one['start of training to first step done, s']:.1f} | "
            f"{1e3 * one['step, s (median)']:.1f} | "
            f"{one['real target tokens/s']:,.0f} | "
            f"{one[_BUSY]:.0%} | {one[_IDLE]:.1%} |"
        )


def search_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write a line for each search."""
    yield "| search | tokens per sentence | ms per batch | sentences/s |"
    yield "|---|---:|---:|---:|"
    for name, one in found["searches"].items():
        yield (
            f"| {name} | {one['tokens per sentence']} | "
            f"{1e3 * one['batch, s (median)']:.1f} | {one['sentences/s']:,.0f} |"
        )


def beside_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Write the table of the side-by-side program."""
    yield found["table"].strip()


def _tera(rate: float) -> str:
    return f"{rate / 1e12:,.1f} 10^12/s"

"""Programs are compiled in threads, each once; failures and stops reach the caller."""

import threading
import time
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from transformer.parallel import ahead


class Lowered:
    """Stands for a program that a test compiles when it likes."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.let = name, log, threading.Event()

    def trace(self) -> Any:
        self.log.append(f"trace {self.name}")
        return self

    def compile(self) -> str:
        self.log.append(f"compile {self.name}")
        assert self.let.wait(30)
        return self.name


def until(log: list[str], line: str) -> None:
    end = time.monotonic() + 30
    while line not in log:
        assert time.monotonic() < end, log
        time.sleep(0.001)


def double(x: jax.Array) -> jax.Array:
    if x.shape == (13,):
        raise ValueError("no double of thirteen")
    return 2 * x


def doubling() -> ahead.Program:
    return ahead.Program(
        ahead.Compiler(accelerator=False),
        jax.jit(double, donate_argnums=0),
        lambda size: (jax.ShapeDtypeStruct((size,), jnp.float32),),
    )


def test_a_shape_is_one_program_whoever_asks():
    program = doubling()
    first = program[3]
    assert program[3] is first and program[4] is not first
    x = jnp.ones(3)
    assert first.result()(x).tolist() == [2, 2, 2]
    assert x.is_deleted()  # donated as by the jitted function itself
    with pytest.raises(TypeError, match="compiled"):
        first.result()(jnp.ones(4))


def test_what_fails_in_a_thread_is_raised_where_it_is_asked_for():
    program = doubling()
    program[13], program[2]
    assert program[2].result()(jnp.ones(2)).tolist() == [2, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="no double of thirteen") as error:
            program[13].result()
        lines = "".join(traceback.format_exception(error.value))
        assert 'raise ValueError("no double of thirteen")' in lines


def test_on_a_cpu_one_is_compiled_at_a_time_in_the_order_asked_for():
    log: list[str] = []
    compiler = ahead.Compiler(accelerator=False)
    programs = [Lowered(name, log) for name in "abc"]
    futures = [compiler.begin(program.trace) for program in programs]
    until(log, "compile a")
    assert log == ["trace a", "compile a"]
    for program in programs:
        program.let.set()
    assert [future.result(30) for future in futures] == ["a", "b", "c"]
    assert log == [f"{what} {name}" for name in "abc" for what in ("trace", "compile")]


def test_for_an_accelerator_the_second_does_not_wait_for_the_first(monkeypatch):
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 2)
    log: list[str] = []
    compiler = ahead.Compiler(accelerator=True)
    programs = [Lowered(name, log) for name in "abc"]
    futures = [compiler.begin(program.trace) for program in programs]
    until(log, "compile b")
    assert log[0] == "trace a" and "trace c" not in log
    programs[1].let.set()
    assert futures[1].result(30) == "b"
    until(log, "compile c")
    assert not futures[0].done()
    for program in programs:
        program.let.set()
    assert [future.result(30) for future in futures] == ["a", "b", "c"]


def test_closing_begins_nothing_more_and_waits_for_nothing():
    log: list[str] = []
    compiler = ahead.Compiler(accelerator=False)
    programs = [Lowered(name, log) for name in "ab"]
    running, waiting = (compiler.begin(program.trace) for program in programs)
    until(log, "compile a")
    compiler.close()
    assert waiting.cancelled() and not running.done()
    programs[0].let.set()
    assert running.result(30) == "a" and "trace b" not in log

"""The example of docs/serve.py, asked as a browser or curl would."""

import importlib.util
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from support.marian_case import write_folder
from support.paths import ROOT
from support.torch_values import PYTHON, has_peer, values

from transformer.formats.exporting import export
from transformer.formats.incoming import import_model
from transformer.translate import Translator, load

PROGRAM = ROOT / "docs" / "serve.py"
TEXT = "ein haus\n\nder alte hund schläft\n"


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> Translator:
    golden = values("committed", "marian_values")
    place = write_folder(golden, tmp_path_factory.mktemp("serve") / "theirs")
    workdir = place.parent / "run"
    workdir.mkdir()
    import_model(place, workdir, log=lambda line: None)
    return load(workdir)


@pytest.fixture(scope="module")
def address(imported) -> Iterator[str]:
    """Serve by our own translator."""
    spec = importlib.util.spec_from_file_location("serve", PROGRAM)
    assert spec is not None and spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    with serve.server(imported.translate, 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def post(address: str, body: bytes) -> str:
    with urllib.request.urlopen(address, body, timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        return answer.read().decode()


def test_a_request_returns_a_line_for_each_line(imported, address):
    found = post(address, TEXT.encode())
    lines = imported.translate(TEXT.split("\n")[:-1])
    assert found == "".join(f"{line}\n" for line in lines)
    assert found.count("\n") == 3 and found.split("\n")[1] == ""
    assert post(address, TEXT.rstrip("\n").encode()) == found


def test_what_is_no_text_is_refused_and_the_next_request_answered(imported, address):
    with pytest.raises(urllib.error.HTTPError, match="400.*UTF-8") as refused:
        post(address, b"\xff\xfe")
    refused.value.close()
    with pytest.raises(urllib.error.HTTPError, match="413.*1,000,000") as refused:
        urllib.request.urlopen(
            urllib.request.Request(
                address, b"", {"Content-Length": "1000001"}, method="POST"
            )
        )
    refused.value.close()
    assert post(address, b"ein haus") == imported.translate(["ein haus"])[0] + "\n"


@pytest.mark.slow
@pytest.mark.skipif(not has_peer("ctranslate2"), reason="no ctranslate2")
def test_the_program_serves_an_exported_model(imported, tmp_path):
    folder = tmp_path / "exported"
    export(imported, "ctranslate2", folder)
    program = subprocess.Popen(
        [PYTHON, str(PROGRAM), str(folder), "--port=0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().strip()
            found = post(address, TEXT.encode()).split("\n")
        finally:
            program.terminate()
    wanted = imported.translate(TEXT.split("\n")[:-1], beam=2)
    assert found == [*wanted, ""]  # a beam of 2, as CTranslate2 has it

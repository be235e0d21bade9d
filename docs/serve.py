"""Serve an exported model over HTTP: lines of text are posted, translations come back.

    transformer export --workdir=runs/numbers --to=ctranslate2 --output=exported
    python docs/serve.py exported --port=8080
    curl --data-binary @new.en http://127.0.0.1:8080

Needs ``ctranslate2`` and ``sentencepiece``, nothing of this project.
"""

import argparse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST = 1_000_000  # bytes of a request


def server(
    translate: Callable[[list[str]], list[str]], port: int
) -> ThreadingHTTPServer:
    """Return a server on this machine alone; port 0 takes one that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = self.headers.get("Content-Length", "")
            if not size.isdecimal() or int(size) > MOST:
                return self.send_error(413, f"Expected at most {MOST:,} bytes of text")
            try:
                text = self.rfile.read(int(size)).decode().removesuffix("\n")
            except UnicodeDecodeError as error:
                return self.send_error(400, f"Expected UTF-8: {error.reason}")
            lines = translate(text.split("\n"))
            found = "".join(f"{line}\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def load(folder: str) -> Callable[[list[str]], list[str]]:
    """Return a function that translates lines by the model of a folder."""
    import ctranslate2
    from sentencepiece import SentencePieceProcessor

    source = SentencePieceProcessor(f"{folder}/source.spm")
    target = SentencePieceProcessor(f"{folder}/target.spm")
    model = ctranslate2.Translator(folder)

    def translate(lines: list[str]) -> list[str]:
        pieces = [source.encode(line, out_type=str) for line in lines]
        found = model.translate_batch(pieces, max_batch_size=32)
        return [target.decode(one.hypotheses[0]) for one in found]

    return translate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Translate over HTTP.")
    parser.add_argument("folder", help="what export --to=ctranslate2 made")
    parser.add_argument("--port", type=int, default=8080)
    values = parser.parse_args()
    with server(load(values.folder), values.port) as running:
        print(f"http://127.0.0.1:{running.server_port}", flush=True)
        running.serve_forever()

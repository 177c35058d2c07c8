"""Runs one llama.cpp server on the loopback until its standard input ends.

    python engine.py --port 0 --alias tiny --slots 4 --context 8192 [--embeddings]

Prints one line `engine: ready on 127.0.0.1:PORT` when it answers. The parent
keeps the other end of standard input; when the parent goes, however it goes,
that end closes and the engine with it, so a broken test run leaves nothing.
In a pod, which has no standard input, it runs --until-told, and on --host 0.0.0.0.
"""

import argparse
import os
import pathlib
import signal
import sys
import threading

import xllamacpp


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--until-told", action="store_true", help="end at SIGTERM, not with standard input")
    parser.add_argument("--alias", default="tiny", help="the model's name for clients")
    parser.add_argument("--slots", type=int, default=4, help="requests served at once")
    parser.add_argument("--context", type=int, default=8192, help="tokens of each slot")
    parser.add_argument("--embeddings", action="store_true", help="serve embeddings, not text")
    parser.add_argument("--model", default=str(pathlib.Path(__file__).parent / "testdata" / "tiny.gguf"))
    return parser.parse_args()


def parameters(args):
    p = xllamacpp.CommonParams()
    p.model.path = args.model
    p.model_alias = {args.alias}
    p.hostnames = [args.host]
    p.port = args.port
    p.n_parallel = args.slots
    p.n_ctx = args.context * args.slots
    p.kv_unified = False
    p.cpuparams.n_threads = 1
    p.cpuparams_batch.n_threads = 1
    p.endpoint_metrics = True
    p.endpoint_slots = True
    p.warmup = False
    # Evicted prompts would be kept in main memory and found again there; without
    # that, what an engine remembers is its slots, as on an engine whose cache is full.
    p.cache_ram_mib = 0
    # Each streamed request holds a thread of the HTTP server while it waits for a slot.
    p.n_threads_http = 64
    if args.embeddings:
        p.embedding = True
        p.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return p


def end_with_parent():
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def main():
    args = arguments()
    if not args.until_told:
        threading.Thread(target=end_with_parent, daemon=True).start()
    server = xllamacpp.Server(parameters(args))
    # The first process of a pod is not ended by a signal that it doesn't handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    address = server.listening_address.removeprefix("http://")
    print(f"engine: ready on {address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

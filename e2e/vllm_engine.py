"""Becomes one vLLM server on the loopback, on CPU.

    python vllm_engine.py FOLDER --port PORT --events PORT [--adapters lora-a,lora-b] [option of vllm serve ...]

FOLDER is what vllm_model.py made. KV events are published on the port of --events and
replayed on the next one. The KV cache is small (128 blocks of 32 tokens), so that tests
see it overflow.
"""

import argparse
import json
import os
import sys

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB set aside; --num-gpu-blocks-override says what is used
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",  # /v1/load_lora_adapter
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # its three processes import everything once, not three times
    "PYTHONHASHSEED": "0",  # decides the hash that all block hashes begin with
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--port", required=True)
    parser.add_argument("--events", type=int, required=True)
    args, more = parser.parse_known_args()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{args.events}",
        "replay_endpoint": f"tcp://*:{args.events + 1}",
        "topic": f"kv@127.0.0.1:{args.port}@tiny",
    }
    os.environ.update(SETTINGS)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or it compiles thousands of modules at each start
    os.chdir(args.folder)
    # As a module: a console script would name the interpreter's path of the time of its installation.
    os.execv(sys.executable, [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "tiny", "--load-format", "dummy", "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", args.port, "--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "4",
        "--enforce-eager", "--block-size", "32", "--num-gpu-blocks-override", "128", "--distributed-executor-backend", "uni",
        "--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor", "--enable-prompt-tokens-details",
        "--enable-request-id-headers", "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
        "--kv-events-config", json.dumps(events), *more])


if __name__ == "__main__":
    main()

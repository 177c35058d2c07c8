"""Talks to a gateway with the real openai client and says what happened.

    python client.py COMMAND URL [options]

Every command prints JSON lines on standard output for the Go tests to judge;
it judges nothing itself and exits 0 whenever it could tell the story. The
client's own retries are off, so that a failure of the gateway stays visible.

    calls    one call of every kind; a line {"call", ...} for each
    load     many requests at once; lines {"event": "start" | "headers" | "first" | "end", "n", ...}
    stream   one long stream; lines as load
    abort    a stream that is closed after a few chunks
    prefix   conversations over shared long preambles; lines as load
    exact    prompts of every kind that a cache may hold a part of, one after another; a line
             {"kind", "n", "prompt_tokens", "cached_tokens", ...} for each
"""

import argparse
import asyncio
import json
import pathlib
import random
import sys
import threading
import time

import openai

CHAT, EMBED = "tiny", "tiny-embed"
WORDS = (pathlib.Path(__file__).parent / "testdata" / "words.txt").read_text().split()
ENDPOINT = "x-gateway-destination-endpoint-served"


def say(**line):
    # One write a line: threads and tasks may speak at the same time.
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def prose(rng, words):
    return " ".join(rng.choices(WORDS, k=words))


def user(text):
    return [{"role": "user", "content": text}]


def told(error):
    """What an exception of the client tells a program: its class, status, code, message."""
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    return {
        "error": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "code": getattr(error, "code", None),
        "type": body.get("type") if isinstance(body, dict) else None,
        "retry_after": response.headers.get("retry-after") if response is not None else None,
        "message": getattr(error, "message", None) or str(error) or repr(error.__cause__),
    }


# calls ---------------------------------------------------------------------


def call_chat(client):
    raw = client.chat.completions.with_raw_response.create(
        model=CHAT, messages=user("the ocean is"), max_tokens=12,
        extra_headers={"x-request-id": "e2e-chat-1"},
    )
    answer = raw.parse()
    return {
        "text": answer.choices[0].message.content,
        "finish": answer.choices[0].finish_reason,
        "tokens": answer.usage.completion_tokens,
        "request_id": raw.headers.get("x-request-id"),
        "endpoint": raw.headers.get(ENDPOINT),
    }


def call_generated_id(client):
    raw = client.chat.completions.with_raw_response.create(model=CHAT, messages=user("hi"), max_tokens=1)
    return {"request_id": raw.headers.get("x-request-id")}


def call_completion(client):
    answer = client.completions.create(model=CHAT, prompt="the ocean is", max_tokens=12)
    return {"text": answer.choices[0].text, "tokens": answer.usage.completion_tokens}


def streamed(client, **options):
    text, chunks, finish, usage = "", 0, None, None
    stream = client.chat.completions.create(
        model=CHAT, messages=user("the ocean is"), max_tokens=24, stream=True, **options
    )
    for chunk in stream:
        chunks += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return {"text": text, "chunks": chunks, "finish": finish, "tokens": usage and usage.completion_tokens}


def call_stream(client):
    return streamed(client)


def call_stream_usage(client):
    return streamed(client, stream_options={"include_usage": True})


def call_responses(client):
    answer = client.responses.create(model=CHAT, input="the ocean is", max_output_tokens=12)
    return {"text": answer.output_text, "tokens": answer.usage.output_tokens}


def call_responses_stream(client):
    kinds, tokens = [], None
    for event in client.responses.create(model=CHAT, input="the ocean is", max_output_tokens=12, stream=True):
        kinds.append(event.type)
        if event.type == "response.completed":
            tokens = event.response.usage.output_tokens
    return {"last": kinds[-1], "chunks": len(kinds), "tokens": tokens}


def call_embeddings(client):
    answer = client.embeddings.create(model=EMBED, input=["an ocean", "a mountain"])
    return {"vectors": len(answer.data), "width": len(answer.data[0].embedding)}


def call_models(client):
    return {"models": sorted(model.id for model in client.models.list())}


def call_unknown_model(client):
    client.chat.completions.create(model="no-such-model", messages=user("hi"), max_tokens=1)
    return {}


def call_unknown_model_stream(client):
    client.chat.completions.create(model="no-such-model", messages=user("hi"), max_tokens=1, stream=True)
    return {}


def call_model_header(client):
    raw = client.chat.completions.with_raw_response.create(
        model=openai.omit, messages=user("hi"), max_tokens=1, extra_headers={"x-gateway-model-name": CHAT}
    )
    return {"tokens": raw.parse().usage.completion_tokens}


def call_malformed(client):
    client.post("/chat/completions", cast_to=object, content=b'{"model": "tiny", "messages": [',
                options={"headers": {"content-type": "application/json"}})
    return {}


def call_model_not_a_string(client):
    client.chat.completions.create(model=7, messages=user("hi"), max_tokens=1)
    return {}


def call_engine_refusal(client):
    # The engine's own 400 passes through: a role it doesn't accept is not the gateway's business.
    client.chat.completions.create(model=CHAT, messages="not a list", max_tokens=1)
    return {}


def call_engine_refusal_stream(client):
    client.chat.completions.create(model=CHAT, messages="not a list", max_tokens=1, stream=True)
    return {}


def calls(args):
    client = openai.OpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0, timeout=30)
    for name, call in list(globals().items()):
        if not name.startswith("call_"):
            continue
        began = time.monotonic()
        try:
            found = call(client)
        except Exception as error:  # the story is what went wrong, whatever it is
            found = told(error)
        say(call=name.removeprefix("call_"), seconds=round(time.monotonic() - began, 3), **found)


# load ----------------------------------------------------------------------


async def one(client, n, messages, tokens, stream):
    """Sends request n and tells its start, a stream's headers, its first chunk and its end."""
    began = time.monotonic()
    end = {"n": n, "stream": stream, "outcome": "ok", "chunks": 0, "tokens": 0, "text": ""}
    say(event="start", n=n, stream=stream)
    try:
        if stream:
            await read_stream(client, n, messages, tokens, end)
        else:
            raw = await client.chat.completions.with_raw_response.create(
                model=client.model, messages=messages, max_tokens=tokens)
            end["endpoint"] = raw.headers.get(ENDPOINT)
            answer = raw.parse()
            say(event="first", n=n, endpoint=end["endpoint"])
            end["tokens"] = answer.usage.completion_tokens
            end["text"] = answer.choices[0].message.content
    except openai.APIError as error:
        # Both are told by the client as an APIError; only the second had begun.
        end["outcome"] = "broken" if end["chunks"] else "failed"
        end.update(told(error))
    except Exception as error:
        end["outcome"] = "cut" if end["chunks"] else "failed"
        end.update(told(error))
    text = end.pop("text")
    say(event="end", seconds=round(time.monotonic() - began, 4), **end)
    return text


async def read_stream(client, n, messages, tokens, end):
    raw = await client.chat.completions.with_raw_response.create(
        model=client.model, messages=messages, max_tokens=tokens, stream=True, stream_options={"include_usage": True})
    end["endpoint"] = raw.headers.get(ENDPOINT)
    say(event="headers", n=n, endpoint=end["endpoint"])
    finished = False
    async for chunk in raw.parse():
        if not end["chunks"]:
            say(event="first", n=n, endpoint=end["endpoint"])
        end["chunks"] += 1
        for choice in chunk.choices:
            end["text"] += choice.delta.content or ""
            finished = finished or choice.finish_reason is not None
        if chunk.usage:
            end["tokens"] = chunk.usage.completion_tokens
    if not finished:
        end["outcome"] = "cut"
        end["message"] = "the stream ended without a finish reason and without an error"


def until_stdin_ends(loop, stop):
    sys.stdin.buffer.read()
    loop.call_soon_threadsafe(stop.set)


def new_client(args):
    client = openai.AsyncOpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0, timeout=args.timeout)
    client.model = args.model  # that one() asks for
    return client


async def load(args):
    client, rng = new_client(args), random.Random(args.seed)
    stop = asyncio.Event()
    if not args.requests:
        threading.Thread(target=until_stdin_ends, args=(asyncio.get_running_loop(), stop), daemon=True).start()
    numbers = iter(range(args.requests)) if args.requests else iter(range(10**9))

    async def worker():
        for n in numbers:
            if stop.is_set():
                return
            await one(client, n, user(prose(rng, args.words)), args.tokens, args.streams == "all" or
                      args.streams == "half" and n % 2 == 0)

    await asyncio.gather(*(worker() for _ in range(args.concurrency)))


async def stream(args):
    await one(new_client(args), 0, user(prose(random.Random(args.seed), args.words)), args.tokens, True)


async def abort(args):
    client = new_client(args)
    answer = await client.chat.completions.create(
        model=CHAT, messages=user("go on and on"), max_tokens=args.tokens, stream=True)
    chunks = 0
    async for _ in answer:
        chunks += 1
        if chunks == 5:
            break
    say(event="first", n=0, chunks=chunks)
    sys.stdin.buffer.readline()
    await answer.close()
    say(event="end", n=0, outcome="closed", chunks=chunks)
    sys.stdin.buffer.readline()


async def prefix(args):
    """Conversations that share a few long preambles, a few of them at a time, in a fixed order."""
    client, rng = new_client(args), random.Random(args.seed)
    preambles = [prose(rng, args.words) for _ in range(args.preambles)]
    conversations = [(p, c) for c in range(args.conversations) for p in range(args.preambles)]
    rng.shuffle(conversations)
    queue = iter(conversations)
    numbers = iter(range(10**9))

    async def worker():
        for preamble, conversation in queue:
            ask = random.Random(f"{args.seed}/{preamble}/{conversation}")
            messages = [{"role": "system", "content": preambles[preamble]}]
            for _ in range(args.turns):
                messages.append({"role": "user", "content": prose(ask, 20)})
                text = await one(client, next(numbers), messages, args.tokens, True)
                messages.append({"role": "assistant", "content": text})

    await asyncio.gather(*(worker() for _ in range(args.concurrency)))


def prompts(rng, count):
    """Makes up kinds of prompts: (kind, model, messages, cache_salt). What is sent gets its answer appended."""
    preambles = [prose(rng, rng.randrange(60, 500)) for _ in range(5)]
    talks, sent = [], []
    for _ in range(count):
        kind = rng.choices(["shared", "talk", "repeat", "adapter", "salt", "alone"], [6, 6, 2, 3, 3, 2])[0]
        model, salt = CHAT, None
        if kind == "talk" and len(talks) >= 4:
            model, messages, salt = talks.pop(rng.randrange(len(talks)))
            messages.append({"role": "user", "content": prose(rng, rng.randrange(10, 60))})
        elif kind == "repeat" and sent:
            model, messages, salt = rng.choice(sent[-8:])
            messages = list(messages)
        else:
            begin = prose(rng, 120) if kind == "alone" else rng.choice(preambles)
            if kind == "adapter":
                model = rng.choice(["lora-a", "lora-b"])
            if kind == "salt":
                salt = rng.choice(["north", "south"])
            messages = [{"role": "system", "content": begin}, {"role": "user", "content": prose(rng, rng.randrange(5, 90))}]
        sent.append((model, list(messages), salt))
        yield kind, model, messages, salt
        if len(messages) < 10:  # the answer has been appended
            talks.append((model, messages, salt))


def exact(args):
    client = openai.OpenAI(base_url=args.url + "/v1", api_key="none", max_retries=0, timeout=args.timeout)
    for n, (kind, model, messages, salt) in enumerate(prompts(random.Random(args.seed), args.requests)):
        name = f"exact-{args.seed}-{n}"
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=messages, max_tokens=args.tokens, extra_headers={"x-request-id": name},
            extra_body={"cache_salt": salt} if salt else None)
        answer = raw.parse()
        usage = answer.usage
        say(event="end", outcome="ok", kind=kind, n=n, request_id=name, endpoint=raw.headers.get(ENDPOINT), model=model,
            prompt_tokens=usage.prompt_tokens, cached_tokens=usage.prompt_tokens_details.cached_tokens)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def arguments():
    commands = {"calls": calls, "load": load, "stream": stream, "abort": abort, "prefix": prefix, "exact": exact}
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=commands)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=0, help="0 goes on until standard input ends")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--streams", choices=["none", "half", "all"], default="half")
    parser.add_argument("--tokens", type=int, default=24, help="length of each answer")
    parser.add_argument("--words", type=int, default=20, help="length of the prompt, or of a preamble")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--model", default=CHAT, help="to ask load, stream and prefix for")
    parser.add_argument("--preambles", type=int, default=6)
    parser.add_argument("--conversations", type=int, default=3, help="for each preamble")
    parser.add_argument("--turns", type=int, default=3, help="of each conversation")
    args = parser.parse_args()
    return commands[args.command], args


def main():
    command, args = arguments()
    story = command(args)
    if asyncio.iscoroutine(story):
        asyncio.run(story)


if __name__ == "__main__":
    main()

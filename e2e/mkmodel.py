"""Makes testdata/tiny.gguf: a random llama model that a llama.cpp server loads in no time.

The weights mean nothing. What the tests need from the model is a shape:

* narrow but deep, so that the file stays small while one token costs about as
  much time as on a small real engine: streams last long enough to be broken;
* a tokenizer for which an ordinary word is about one token, so that a test can
  ask for a prompt of so many tokens by counting words;
* no end-of-sequence token and no byte that is not printable ASCII among its
  likely outputs, so that max_tokens alone says how long an answer is.

The file is committed; run this again only to change it. Everything comes from
fixed seeds and from testdata/words.txt, so two runs give the same bytes. The tokenizer
is the one of vocabulary.py.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 tokenizers==0.23.3 numpy==2.4.6
    V/bin/python e2e/mkmodel.py
"""

import json
import pathlib

import gguf
import numpy as np

import vocabulary
from vocabulary import SEED, SPECIAL

HERE = pathlib.Path(__file__).resolve().parent
CONTEXT = 8192
WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 32, 64, 48, 2, 1


def printable(token):
    """Whether a token of the byte-level alphabet stands for printable ASCII text."""
    return token not in SPECIAL and all("!" <= c <= "~" or c == "\u0120" for c in token)


def write_tokenizer(writer, tokens, merges):
    kinds = [gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(SPECIAL.index("<s>"))
    writer.add_eos_token_id(SPECIAL.index("</s>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


def write_tensors(writer, tokens):
    rng = np.random.default_rng(SEED)
    key_width = WIDTH // HEADS * KV_HEADS

    def weights(rows, columns, scale=0.3):
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float16)

    ones = np.ones(WIDTH, np.float32)
    writer.add_tensor("token_embd.weight", weights(len(tokens), WIDTH))
    # A row of zeros has logit 0; among two thousand logits of a wide spread it is
    # never drawn.
    head = weights(len(tokens), WIDTH, 2.0)
    head[[not printable(token) for token in tokens]] = 0
    writer.add_tensor("output.weight", head)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        writer.add_tensor(name + "attn_norm.weight", ones)
        writer.add_tensor(name + "attn_q.weight", weights(WIDTH, WIDTH))
        writer.add_tensor(name + "attn_k.weight", weights(key_width, WIDTH))
        writer.add_tensor(name + "attn_v.weight", weights(key_width, WIDTH))
        writer.add_tensor(name + "attn_output.weight", weights(WIDTH, WIDTH))
        writer.add_tensor(name + "ffn_norm.weight", ones)
        writer.add_tensor(name + "ffn_gate.weight", weights(INNER, WIDTH))
        writer.add_tensor(name + "ffn_up.weight", weights(INNER, WIDTH))
        writer.add_tensor(name + "ffn_down.weight", weights(WIDTH, INNER))


def main():
    tokens, merges = vocabulary.tokens_and_merges()
    path = HERE / "testdata" / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    write_tokenizer(writer, tokens, merges)
    write_tensors(writer, tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path.name}: {path.stat().st_size} bytes, {len(tokens)} tokens, {len(merges)} merges")


if __name__ == "__main__":
    main()

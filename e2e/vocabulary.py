"""A small byte-level BPE vocabulary in which an ordinary word is about one token.

Everything comes from a fixed seed and from testdata/words.txt, so two runs give the
same vocabulary. The models of both kinds of engine are made with it.
"""

import json
import pathlib

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20
SIZE = 2048
SPECIAL = ["<unk>", "<s>", "</s>", "<|start|>", "<|end|>"]

# The generation prompt is a prefix of what the answer becomes in the next turn,
# so a conversation that goes on extends its own prompt and nothing else.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|start|>{{ message.role }}: {{ message.content }}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|start|>assistant: {%- endif -%}"
)


def words():
    return (HERE / "testdata" / "words.txt").read_text().split()


def sentences(words, count):
    """Made-up prose: the words in a fixed pseudo-random order, some capitalised."""
    rng = np.random.default_rng(SEED)
    for _ in range(count):
        picked = [words[i] for i in rng.integers(0, len(words), size=rng.integers(6, 16))]
        yield " ".join(picked).capitalize() + ". " + "0123456789 {}[]()\"':;,!?-\n"


def train():
    """The tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(words(), 12000), trainer)
    return tokenizer


def tokens_and_merges():
    """The vocabulary in order, and its merges, as the GGUF format wants them."""
    model = json.loads(train().to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tokens, merges

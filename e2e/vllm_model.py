"""Makes a tiny model and two LoRA adapters for vLLM.

    python vllm_model.py FOLDER

writes FOLDER/tiny, FOLDER/lora-a and FOLDER/lora-b. The model has no weights: vLLM makes
them up (--load-format dummy). It has no end-of-sequence token, so that max_tokens alone
says how long an answer is. The adapters' weights come from fixed seeds.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

import vocabulary

WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 128, 256, 2, 4, 2
CONTEXT = 4096
RANK = 8


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1))


def write_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary.train()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "model_max_length": CONTEXT,
        "chat_template": vocabulary.CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    })
    write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    })


def write_adapter(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    weights = {}
    outputs = {"q_proj": WIDTH, "v_proj": WIDTH // HEADS * KV_HEADS}
    for layer in range(LAYERS):
        for name, out in outputs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = rng.standard_normal((RANK, WIDTH)).astype(np.float32)
            weights[f"{prefix}.lora_B.weight"] = rng.standard_normal((out, RANK)).astype(np.float32)
    save_file(weights, str(folder / "adapter_model.safetensors"))
    write_json(folder / "adapter_config.json", {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outputs),
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    })


def main():
    folder = pathlib.Path(sys.argv[1])
    write_model(folder / "tiny")
    write_adapter(folder / "lora-a", 1)
    write_adapter(folder / "lora-b", 2)


if __name__ == "__main__":
    main()

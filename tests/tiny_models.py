"""A byte tokenizer with ChatML or GLM-4.5's own template, and a random Llama that speaks it: no download, no file."""

from importlib.resources import files
from pathlib import Path

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOKENS = ["<|im_end|>", "<|im_start|>"]
GLM_TOKENS = [
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
]


def byte_tokenizer(special: list[str], template: str):
    """One token a byte, and one for each special string (ids 0, 1, ...); the first is the end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0], pad_token=special[0])
    fast.chat_template = template
    return fast


def chatml_tokenizer():
    """The byte tokenizer with ChatML."""
    return byte_tokenizer(CHATML_TOKENS, CHATML)


def glm_tokenizer():
    """The byte tokenizer with the template that TRL ships for GLM-4.5: no end-of-turn token, thinking, tools."""
    template = files("trl").joinpath("chat_templates/glm4moe.jinja").read_text(encoding="utf-8")
    return byte_tokenizer(GLM_TOKENS, template)


ALWAYS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ '<|' + m['role'] + '|>' }}\n"
    "{% if m['role'] == 'assistant' %}{{ '<think>' + (m['reasoning_content'] or '') + '</think>' }}{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|><|assistant|>\n<think>{% endif %}"
)
"""The shape of INTELLECT-3's template: the prompt opens the thinking, and every turn keeps its own."""
FAMILIES = {
    # End of text first, then what else ends a turn or is one token.
    "chatml": (CHATML_TOKENS, 1, CHATML),
    "glm4moe": (GLM_TOKENS, 0, None),
    "qwen3": (["<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], 1, None),
    "llama3": (["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"], 1, None),
    "always_thinking": (
        ["<|im_end|>", "<|im_start|>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>"],
        1,
        ALWAYS_THINKING,
    ),
}
"""Special tokens, how many of them end a turn (0: GLM's three role tokens), and the template unless TRL ships it."""


def family_tokenizer(family: str):
    """The byte tokenizer with a family's special tokens and its real template."""
    tokens, _, template = FAMILIES[family]
    if template is None:
        template = files("trl").joinpath(f"chat_templates/{family}.jinja").read_text(encoding="utf-8")
    tokenizer = byte_tokenizer(tokens, template)
    if family == "llama3":
        tokenizer.bos_token = "<|begin_of_text|>"
    return tokenizer


def write_tiny_llama(folder: Path, seed: int = 0, template: str = CHATML) -> Path:
    """A random Llama of two layers with the byte tokenizer, as a Hugging Face folder."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(CHATML_TOKENS, template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""Which model architectures a captured sequence state restores in full, and why others do not.

The lists follow llama.cpp (commit 0c1e57098): `llm_arch_is_recurrent`, `llm_arch_is_hybrid` and
`llm_arch_is_diffusion` in llama-arch.cpp, `llama_model::create_memory` and
`llama_model_rope_type` in llama-model.cpp. An architecture is supported when its whole memory is
an ordinary or sliding-window KV cache with one position a token. Everything else is refused, what
is unknown included: a state that restores almost everything gives wrong logits, silently. This
module knows names and reasons, no files and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgraft.errors import ModelUnsupported

_SUPPORTED_NAMES = """
afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chatglm codeshell
cohere2 cohere2moe command-r dbrx deepseek dots1 ernie4_5 ernie4_5-moe exaone exaone-moe exaone4
falcon gemma gemma2 gemma3 gemma3n gemma4 glm4 glm4moe gpt-oss gpt2 gptneox granite granite_swa
granitemoe grok grovemoe hunyuan-dense hunyuan-moe hy_v3 internlm2 jais jais2 laguna llama
llama4 maincoder maple mellum mimo2 minicpm minicpm3 minimax-m2 mistral3 mpt muse-glimmer
nemotron olmo olmo2 olmoe openelm orion pangu-embedded phi2 phi3 phimoe plamo plamo3 plm qwen
qwen2 qwen2moe qwen3 qwen3moe refact seed_oss smallthinker smollm3 spark2_5 stablelm starcoder
starcoder2 step35 talkie xverse
"""

SUPPORTED: frozenset[str] = frozenset(_SUPPORTED_NAMES.split())

_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        "recurrent",
        "its memory is a running state that cannot be cut at a token",
        "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7",
    ),
    (
        "hybrid",
        "part of its memory is a running state beside the KV cache, which does not restore in full",
        "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next "
        "kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01",
    ),
    (
        "encoder",
        "it attends in both directions and keeps no KV cache",
        "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
        "gemma-embedding llama-embed t5encoder",
    ),
    (
        "encoder-decoder",
        "its answer depends on an encoder's output that the KV cache does not hold",
        "t5",
    ),
    (
        "diffusion",
        "it attends in both directions and keeps no KV cache",
        "dream llada llada-moe rnd1",
    ),
    (
        "sparse-attention",
        "it keeps an indexer cache whose state layout is not known here",
        "minimax-m3 glm-dsa deepseek32 hy_v4 dots3note",
    ),
    (
        "latent-attention",
        "it keeps compressed keys without values, a state layout that is not known here",
        "deepseek2 deepseek2-ocr mistral4",
    ),
    (
        "multi-axis position",
        "each token has several positions, a state layout that is not known here",
        "qwen2vl qwen3vl qwen3vlmoe paddleocr hunyuan_vl",
    ),
    (
        "draft-head",
        "it reads the memory of another model",
        "eagle3 dflash gemma4-assistant",
    ),
    (
        "audio or vision",
        "it is not a text decoder",
        "clip wavtokenizer-dec qwen3tts pockettts",
    ),
)

REFUSED: Mapping[str, tuple[str, str]] = {
    name: (kind, reason) for kind, reason, names in _REFUSALS for name in names.split()
}
"""Architecture name to (kind, reason) for those refused by name."""


def require_supported(architecture: str, *, where: object = None) -> None:
    """Refuse an architecture whose state does not restore in full.

    Args:
        architecture: the value of `general.architecture`.
        where: the file, for the message.

    Raises:
        ModelUnsupported: for any name that is not in `SUPPORTED`.
    """
    if architecture in SUPPORTED:
        return
    hint = "use a causal decoder with an ordinary or sliding-window KV cache, such as " + ", ".join(
        ("llama", "gemma3", "gemma4", "qwen3", "phi3")
    )
    if architecture in REFUSED:
        kind, reason = REFUSED[architecture]
        what = f"{kind} architecture {architecture} is refused: {reason}"
        raise ModelUnsupported(what, where=where, hint=hint)
    raise ModelUnsupported(
        "the architecture is not known to keep all its memory in a KV cache",
        expected=f"one of the {len(SUPPORTED)} names in kvgraft.architectures.SUPPORTED",
        found=architecture,
        where=where,
        hint=hint,
    )

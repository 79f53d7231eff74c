"""Reads a text with llama.cpp alone and prints the SHA-256 of the last logits.

Uses nothing of this project, so that its digests can be compared with the project's. One batch,
no repacked weights, no flash attention, every row's logits asked for, as docs/adr/0003 wants it.

    GGML_CPU_TILED_MM=0 python tests/data/bare_engine.py MODEL.gguf '[2, 3, 5]' N_CTX
"""

import ctypes
import hashlib
import json
import sys

import llama_cpp as api

path, tokens, n_ctx = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
api.llama_backend_init()
weights = api.llama_model_default_params()
weights.use_extra_bufts = False
model = api.llama_model_load_from_file(path.encode(), weights)
params = api.llama_context_default_params()
params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
params.n_threads = params.n_threads_batch = 1
params.flash_attn_type, params.swa_full = 0, True
context = api.llama_init_from_model(model, params)
batch = api.llama_batch_init(len(tokens), 0, 1)
batch.n_tokens = len(tokens)
for i, token in enumerate(tokens):
    batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
    batch.seq_id[i][0] = 0
assert api.llama_decode(context, batch) == 0
n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
last = api.llama_get_logits_ith(context, len(tokens) - 1)
print(hashlib.sha256(ctypes.string_at(last, 4 * n_vocab)).hexdigest())

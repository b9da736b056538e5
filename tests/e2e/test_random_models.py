"""Architectures that draw in their forward pass, with the seed of torch's own run."""

import pytest
import torch

import taper_frontend
from lowering import tensors_in
from marks import NUMPY, some
from taper_runtime import InferenceSession, RunOptions, SessionOptions

pytestmark = NUMPY

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)


class Informer(torch.nn.Module):
    """Its attention samples keys: ``torch.randint``."""

    def __init__(self):
        super().__init__()
        config = transformers.InformerConfig(
            prediction_length=4,
            context_length=12,
            lags_sequence=[1, 2, 3],
            num_time_features=2,
            d_model=16,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            distil=False,
            sampling_factor=1,
            init_std=0.5,  # so that it matters which keys are sampled
        )
        self.model = transformers.InformerModel(config)
        self.example = (
            torch.randn(2, 15),
            torch.randn(2, 15, 2),
            torch.ones(2, 15),
            torch.randn(2, 4),
            torch.randn(2, 4, 2),
        )

    def forward(self, values, times, observed, future, future_times):
        return self.model(
            values,
            times,
            observed,
            future_values=future,
            future_time_features=future_times,
            use_cache=False,
        ).last_hidden_state


class Vits(torch.nn.Module):
    """From text to speech, with durations that are given: those it predicts decide sizes."""

    def __init__(self):
        super().__init__()
        config = transformers.VitsConfig(
            vocab_size=30,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=64,
            flow_size=32,
            spectrogram_bins=33,
            upsample_initial_channel=32,
            upsample_rates=[4, 4],
            upsample_kernel_sizes=[8, 8],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1, 3]],
            prior_encoder_num_wavenet_layers=2,
            prior_encoder_num_flows=2,
        )
        self.model = transformers.VitsModel(config)
        self.example = (torch.randint(1, 30, (1, 9)), torch.rand(1, 20, 9))

    def forward(self, ids, durations):
        ones = torch.ones_like(ids)
        text = self.model.text_encoder(ids, ones[..., None].float(), ones)
        means = (durations @ text.prior_means).mT
        deviations = torch.exp((durations @ text.prior_log_variances).mT)
        latents = means + torch.randn_like(means) * deviations * self.model.noise_scale
        mask = torch.ones_like(means[:, :1])
        return self.model.decoder(self.model.flow(latents, mask, None, reverse=True), None)


@pytest.mark.parametrize("architecture", some([Informer, Vits], [Vits]))
def test_same_seed_same_numbers(architecture):
    torch.manual_seed(0)
    module = architecture().eval()
    plan = taper_frontend.export(module, module.example)
    assert "RANDOM" in {node.op for node in plan.nodes}
    options = SessionOptions()
    options.seed = 5
    session = InferenceSession(plan, options)
    feed = {
        arg.name: x.numpy()
        for arg, x in zip(session.get_inputs(), tensors_in(module.example), strict=True)
    }

    def check(want, run_options=None):
        (got,) = session.run(None, feed, run_options)
        torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-3, atol=1e-4)
        return want

    with torch.no_grad():
        torch.manual_seed(5)
        first, second = check(module(*module.example)), check(module(*module.example))
        assert not torch.allclose(first, second, rtol=1e-3, atol=1e-4)
        torch.manual_seed(6)
        once = RunOptions()
        once.seed = 6
        check(module(*module.example), once)

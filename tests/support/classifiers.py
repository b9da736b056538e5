"""Image classifiers as benchmarks time them: 224 x 224, seeded weights; needs transformers."""

import torch

from models import First, seeded


def resnet50(batch):
    from transformers import ResNetConfig, ResNetForImageClassification

    return _classifier(lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)), batch)


def resnet18(batch):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_labels=1000, layer_type="basic", depths=[2] * 4, hidden_sizes=[64, 128, 256, 512]
    )
    return _classifier(lambda: ResNetForImageClassification(config), batch)


def mobilenet_v2(batch):
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(num_labels=1000)
    return _classifier(lambda: MobileNetV2ForImageClassification(config), batch)


def mobilenet_v3_large(batch):
    return _seeded_with_image(MobileNetV3Large, batch)


def efficientnet_b0(batch):
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        num_labels=1000, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280
    )
    return _classifier(lambda: EfficientNetForImageClassification(config), batch)


def convnext_tiny(batch):
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(num_labels=1000)
    return _classifier(lambda: ConvNextForImageClassification(config), batch)


def vit_small(batch):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_labels=1000, hidden_size=384, num_attention_heads=6, intermediate_size=1536
    )
    return _classifier(lambda: ViTForImageClassification(config), batch)


def swin_tiny(batch):
    from transformers import SwinConfig, SwinForImageClassification

    return _classifier(lambda: SwinForImageClassification(SwinConfig(num_labels=1000)), batch)


#: Architectures of transformers as their configs come, and the side of the images they take.
OTHERS = {
    "Beit": 224,
    "Bit": 224,
    "ConvNextV2": 224,
    "Cvt": 224,
    "DeiT": 224,
    "Dinov2": 224,
    "FocalNet": 224,
    "HGNetV2": 224,
    "Levit": 224,
    "MobileNetV1": 224,
    "MobileViT": 256,
    "MobileViTV2": 256,
    "PoolFormer": 224,
    "PvtV2": 224,
    "RegNet": 224,
    "Segformer": 224,
    "SwiftFormer": 224,
    "Swinv2": 224,
}


def other(name, batch):
    import transformers

    classifier = getattr(transformers, f"{name}ForImageClassification")
    config = classifier.config_class(num_labels=1000)
    return _classifier(lambda: classifier(config), batch, OTHERS[name])


def _classifier(make, batch, side=224):
    return _seeded_with_image(lambda: First(_spread(make())), batch, side)


def _spread(module):
    """Weights with which activations keep their size: transformers' own fade layer by layer, until
    denormals are what is timed and a result of zeros proves nothing."""
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight)
        elif isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.0)
    return module


def _seeded_with_image(make, batch, side=224):
    return seeded(make), (torch.randn(batch, 3, side, side),)


class MobileNetV3Large(torch.nn.Module):
    """Howard et al., "Searching for MobileNetV3", 2019, table 1."""

    #: kernel, expanded and output channels, squeeze-and-excite, hard swish, stride
    ROWS = (
        (3, 16, 16, False, False, 1),
        (3, 64, 24, False, False, 2),
        (3, 72, 24, False, False, 1),
        (5, 72, 40, True, False, 2),
        (5, 120, 40, True, False, 1),
        (5, 120, 40, True, False, 1),
        (3, 240, 80, False, True, 2),
        (3, 200, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 480, 112, True, True, 1),
        (3, 672, 112, True, True, 1),
        (5, 672, 160, True, True, 2),
        (5, 960, 160, True, True, 1),
        (5, 960, 160, True, True, 1),
    )

    def __init__(self):
        super().__init__()
        layers = [_conv(3, 16, 3, stride=2), torch.nn.Hardswish()]
        channels = 16
        for kernel, expanded, out, squeeze, hard, stride in self.ROWS:
            layers.append(Bottleneck(channels, kernel, expanded, out, squeeze, hard, stride))
            channels = out
        layers += [_conv(160, 960, 1), torch.nn.Hardswish(), torch.nn.AdaptiveAvgPool2d(1)]
        self.features = torch.nn.Sequential(*layers)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(960, 1280), torch.nn.Hardswish(), torch.nn.Linear(1280, 1000)
        )

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Bottleneck(torch.nn.Module):
    """Expand, depthwise, squeeze-and-excite, project; a residual where the shape stays."""

    def __init__(self, channels, kernel, expanded, out, squeeze, hard, stride):
        super().__init__()
        activation = torch.nn.Hardswish if hard else torch.nn.ReLU
        layers = [_conv(channels, expanded, 1), activation()] if expanded != channels else []
        layers += [_conv(expanded, expanded, kernel, stride, groups=expanded), activation()]
        if squeeze:
            layers.append(SqueezeExcite(expanded))
        self.layers = torch.nn.Sequential(*layers, _conv(expanded, out, 1))
        self.residual = stride == 1 and channels == out

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.residual else y


class SqueezeExcite(torch.nn.Module):
    """Channels scaled by a gate computed from their means."""

    def __init__(self, channels):
        super().__init__()
        inner = (channels // 4 + 7) // 8 * 8
        self.gate = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Conv2d(channels, inner, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(inner, channels, 1),
            torch.nn.Hardsigmoid(),
        )

    def forward(self, x):
        return x * self.gate(x)


def _conv(channels, out, kernel, stride=1, groups=1):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        torch.nn.BatchNorm2d(out),
    )

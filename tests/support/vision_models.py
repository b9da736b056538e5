"""Small vision models in plain torch, one per way of wiring layers together."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def conv(inputs, outputs, kernel=3, stride=1, groups=1, act=nn.ReLU):
    """Convolution, batch norm, activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        act(),
    )


class SqueezeExcite(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)

    def forward(self, x):
        scale = F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.up(scale))


class InvertedResidual(nn.Module):
    """MobileNetV3: expand, depthwise, squeeze and excite, project."""

    def __init__(self, width, wide, kernel):
        super().__init__()
        self.layers = nn.Sequential(
            conv(width, wide, 1, act=nn.Hardswish),
            conv(wide, wide, kernel, groups=wide, act=nn.Hardswish),
            SqueezeExcite(wide),
            conv(wide, width, 1, act=nn.Identity),
        )

    def forward(self, x):
        return x + self.layers(x)


def mobilenet_v3():
    return nn.Sequential(
        conv(3, 16, 3, 2, act=nn.Hardswish),
        InvertedResidual(16, 32, 3),
        InvertedResidual(16, 48, 5),
        conv(16, 40, 1, act=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 24),
        nn.Hardswish(),
        nn.Dropout(),
        nn.Linear(24, 10),
    )


class UNet(nn.Module):
    """Down, up by transposed convolution and by interpolation, skips joined."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = conv(3, 8), conv(8, 16), conv(16, 32)
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear")
        self.after2, self.after1 = conv(32, 16), conv(24, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        three = self.middle(F.max_pool2d(two, 2))
        two = self.after2(torch.cat([self.up2(three), two], 1))
        one = self.after1(torch.cat([self.up1(two), one], 1))
        return self.head(one).softmax(1)


class DenseNet(nn.Module):
    """Norm and activation before each convolution; every layer reads all before it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 8, 3, padding=1, bias=False)
            )
            for width in (8, 16, 24)
        )
        self.transition = nn.Sequential(
            nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1, bias=False), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(self.transition(x).mean([2, 3]))


class ShuffleNet(nn.Module):
    """ShuffleNetV2: half of the channels goes through, then all are shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = conv(3, 16, 3, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(8, 8, 1), conv(8, 8, 3, groups=8, act=nn.Identity), conv(8, 8, 1))
            for _ in range(3)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            left, right = x.chunk(2, 1)
            x = F.channel_shuffle(torch.cat([left, block(right)], 1), 2)
        return self.head(x.mean([2, 3]))


class Inception(nn.Module):
    """Branches of unlike kernels, one of them pooled, joined."""

    def __init__(self, width):
        super().__init__()
        self.a = conv(width, 8, 1)
        self.b = nn.Sequential(conv(width, 8, 1), conv(8, 16, 3))
        self.c = nn.Sequential(conv(width, 4, 1), conv(4, 8, 5))
        self.d = conv(width, 8, 1)

    def forward(self, x):
        pooled = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        return torch.cat([self.a(x), self.b(x), self.c(x), self.d(pooled)], 1)


class GoogLeNet(nn.Module):
    """Local response norm, pools rounded up, inception blocks."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 7, 2, 3)
        self.one, self.two = Inception(12), Inception(40)
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        x = F.local_response_norm(F.relu(self.stem(x)), 5)
        x = self.one(F.max_pool2d(x, 3, 2, ceil_mode=True))
        x = self.two(F.max_pool2d(x, 3, 2, ceil_mode=True))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Generator(nn.Module):
    """Reflected borders, instance norm, residuals, pixel shuffle; the input is added at the end."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, 16, 7), nn.InstanceNorm2d(16)
        )
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, padding_mode="replicate"),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
        )
        self.last = nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        y = F.leaky_relu(self.first(x), 0.2)
        y = y + self.block(y)
        return F.interpolate(x, scale_factor=2, mode="bicubic") + self.last(y)


class ResNetWith1d(nn.Module):
    """One-dimensional convolutions over a signal, dilated and causal by padding."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 16, 5, 2)
        self.layers = nn.ModuleList(nn.Conv1d(16, 16, 3, dilation=d) for d in (1, 2, 4))
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + F.gelu(layer(F.pad(x, (2 * layer.dilation[0], 0))))
        return self.head(self.norm(x).transpose(1, 2))


#: Name -> what builds it, shape of its input, how many nodes may do nothing but move values.
MODELS = {
    "MobileNetV3": (mobilenet_v3, (1, 3, 32, 32), 1),
    "UNet": (UNet, (2, 3, 16, 16), 2),
    "DenseNet": (DenseNet, (2, 3, 32, 32), 1),
    "ShuffleNet": (ShuffleNet, (1, 3, 32, 32), 4),
    "GoogLeNet": (GoogLeNet, (1, 3, 40, 40), 2),
    "Generator": (Generator, (1, 3, 16, 16), 1),
    "ResNetWith1d": (ResNetWith1d, (2, 2, 64), 1),
}

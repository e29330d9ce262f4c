"""Small versions of networks that people bring: seventeen, each with the shape of its images."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]


def conv_norm(c_in: int, c_out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
    )


class VGG(nn.Module):
    """Torchvision's order of things, its average pool of 7 x 7 for images of any size."""

    def __init__(self, pool: int) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_norm(3, 4), nn.MaxPool2d(2), conv_norm(4, 8), nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d((pool, pool))
        self.classifier = nn.Sequential(nn.Linear(8 * pool**2, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class PaddedFunctional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0))
        self.conv3 = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect", dilation=1)
        self.weight = nn.Parameter(torch.randn(4, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(F.pad(x, (1, 1, 1, 1))))
        x = F.leaky_relu(self.conv3(F.relu(self.conv2(x))), 0.1)
        x = F.avg_pool2d(x, (x.shape[-2], x.shape[-1]))
        return F.linear(x.reshape(x.shape[0], -1), self.weight)


class BasicBlock(nn.Module):
    """ResNet's block as torchvision writes it."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out)
        self.conv2, self.bn2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, channels: int = 3, classes: int = 4, width: int = 4) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(channels, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x))))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 2, 3, padding=1)) for c in (4, 6, 8)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 6, 1), nn.AvgPool2d(2))
        self.classifier = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        x = F.relu(self.transition(torch.cat(features, 1)), inplace=True)
        return self.classifier(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class InvertedResidual(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and c_in == c_out
        self.conv = nn.Sequential(
            nn.Conv2d(c_in, 2 * c_in, 1, bias=False),
            nn.BatchNorm2d(2 * c_in),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * c_in, 2 * c_in, 3, stride, 1, groups=2 * c_in, bias=False),
            nn.BatchNorm2d(2 * c_in),
            nn.ReLU6(inplace=True),
            nn.Conv2d(2 * c_in, c_out, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_norm(3, 4, stride=2), InvertedResidual(4, 4, 1), InvertedResidual(4, 6, 2))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).reshape(x.shape[0], -1))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, layer norm and dense layers on channels that are last, scaled by a learned vector."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(torch.full((c,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.dwconv(x).permute(0, 2, 3, 1)
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), LayerNorm2d(4))
        self.blocks = nn.Sequential(ConvNeXtBlock(4), ConvNeXtBlock(4))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean([-2, -1])))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_norm(3, 4), conv_norm(4, 6)
        self.up, self.grow = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Upsample(scale_factor=2)
        self.merge, self.fuse, self.last = conv_norm(8, 4), nn.Conv2d(10, 4, 1), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.merge(torch.cat([a, self.up(b)], dim=1))
        y = self.fuse(torch.cat([y, self.grow(b)], dim=1))
        return self.last(y.mean((2, 3)))


class MNISTExample(nn.Module):
    """The network of PyTorch's MNIST example, which ends in a log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 6, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(6 * 4, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class CIFARTutorial(nn.Module):
    """The network of PyTorch's tutorial: convolutions of 5 x 5 without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 4, 5), nn.MaxPool2d(2, 2), nn.Conv2d(4, 8, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.inner = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.mix = nn.Parameter(torch.tensor([0.3, -0.2, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        for index, layer in enumerate(self.inner):
            w = torch.sigmoid(self.mix[index])
            x = (1 - w) * x + w * F.leaky_relu(layer(x), 0.2)
        return self.last(x)


class Branching(nn.Module):
    """Two halves of the channels apart, a third branch, all of them together again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv_norm(3, 8, stride=2), nn.Linear(12, 4)
        self.one, self.other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.third = nn.Conv2d(8, 4, 3, padding=2, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = x.chunk(2, dim=1)
        y = torch.cat([F.relu(self.one(a)), self.other(b), self.third(x)], dim=1)
        return self.last(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Deciding(nn.Module):
    """Decides on shapes, asserts them, and counts its channels itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        _, channels, *sides = x.shape
        assert channels == 3
        if x.shape[-1] > 4:
            x = F.avg_pool2d(x, x.size(-1) // 4)
        if x.dim() == 4 and sides[0] == sides[1]:
            x = F.relu(self.conv(x))
        return self.last(x.view(x.size(0), -1))


class ViT(nn.Module):
    """Attention, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.query, self.key, self.value = nn.Conv2d(3, 8, 4, 4), *(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5, dim=-1)
        return self.last((x + weights @ self.value(x)).mean(1))


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.LSTM(24, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.rows(x.transpose(1, 2).flatten(2))
        return self.last(outputs[:, -1])


IMAGE = (3, 8, 8)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "VGG": (lambda: VGG(2), IMAGE),
    "dropout MLP": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 4)),
        (1, 8, 8),
    ),
    "padded functional CNN": (PaddedFunctional, (3, 6, 6)),
    "ResNet": (ResNet, IMAGE),
    "DenseNet": (DenseNet, (3, 6, 6)),
    "MobileNet": (MobileNet, IMAGE),
    "ConvNeXt": (ConvNeXt, IMAGE),
    "U-Net": (UNet, (3, 6, 6)),
    "MNIST example": (MNISTExample, (1, 8, 8)),
    "CIFAR tutorial": (CIFARTutorial, (3, 16, 16)),
    "VGG with a pool of 7 x 7": (lambda: VGG(7), IMAGE),
    "vector MLP": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), (6,)),
    "residual MLP": (ResidualMLP, (6,)),
    "branching": (Branching, (3, 6, 6)),
    "deciding on shapes": (Deciding, (3, 8, 8)),
    "ViT": (ViT, IMAGE),
    "LSTM": (Recurrent, IMAGE),
}
REFUSED = ("ViT", "LSTM")


def drawn(name: str) -> tuple[nn.Module, Shape]:
    """Return a network with random weights and statistics, in evaluation mode, and the shape of its images."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make().eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_var is not None
            nn.init.uniform_(part.weight, 0.5, 2)
            part.running_var.uniform_(0.5, 2)
    return model, shape


def images(shape: Shape, count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Image models: segmentation_models_pytorch, pytorchcv, efficientnet_pytorch and ultralytics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.cases import Case

DECODERS = [
    "Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet",
    "Segformer", "DPT",
]  # fmt: skip
ENCODERS = ("resnet18", "mobilenet_v2", "efficientnet-b0", "mit_b0", "densenet121", "timm-regnetx_002")


def segmentation_cases() -> Iterator[Case]:
    """Yield every decoder on a ResNet, and two of them on each other kind of encoder."""
    import segmentation_models_pytorch as smp

    pairs = [(decoder, ENCODERS[0]) for decoder in DECODERS if hasattr(smp, decoder)]
    pairs += [(decoder, encoder) for encoder in ENCODERS[1:] for decoder in ("Unet", "FPN")]
    for decoder, encoder in pairs:
        used = "tu-vit_tiny_patch16_224" if decoder == "DPT" else encoder
        make = partial(getattr(smp, decoder), used, encoder_weights=None, classes=2)
        side = {"DPT": 224, "PAN": 128}.get(decoder, 64)
        yield Case("segmentation_models_pytorch", f"{decoder}_{encoder}", make, size=(3, side, side))


PYTORCHCV = (
    "alexnet vgg11 bn_vgg11 bninception resnet10 preresnet10 resnext14_16x4d seresnet10 sepreresnet10 seresnext50_32x4d"
    " senet16 resnestabc14 ibn_resnet50 airnet50_1x64d_r2 bam_resnet18 cbam_resnet18 resattnet56 sknet50"
    " diaresnet10 diapreresnet10 pyramidnet101_a360 diracnet18v2 sharesnet18 densenet121 condensenet74_c4_g4"
    " sparsenet121 peleenet wrn50_2 drnc26 dpn68 darknet_tiny darknet19 darknet53 channelnet irevnet301 bagnet9"
    " dla34 msdnet22 fishnet99 espnetv2_wd2 dicenet_wd5 hrnet_w18_small_v1 vovnet27s selecsls42 hardnet39ds"
    " xdensenet121_2 squeezenet_v1_0 squeezeresnet_v1_1 sqnxt23_w1 shufflenet_g1_wd4 shufflenetv2_wd2 shufflenetv2b_wd2"
    " menet108_8x1_g3 mobilenet_wd4 mobilenetb_wd4 fdmobilenet_wd4 mobilenetv2_wd4 mobilenetv3_small_wd2 igcv3_wd4"
    " ghostnet mnasnet_small proxylessnas_cpu fbnet_cb xception inceptionv3 inceptionv4 inceptionresnetv2 polynet"
    " nasnet_4a1056 pnasnet5large spnasnet efficientnet_b0 efficientnet_b0b mixnet_s isqrtcovresnet18 resneta10"
    " regnetx002 regnety002 tresnet_m resnetd50b nin_cifar10 resnet20_cifar10 preresnet20_cifar10"
    " resnext20_16x4d_cifar10 densenet40_k12_cifar10 pyramidnet110_a48_cifar10 wrn16_10_cifar10 ror3_56_cifar10"
    " rir_cifar10 shakeshakeresnet20_2x16d_cifar10 diaresnet20_cifar10 xdensenet40_2_k24_bc_cifar10"
    " pspnet_resnetd50b_voc deeplabv3_resnetd50b_voc fcn8sd_resnetd50b_voc icnet_resnetd50b_cityscapes"
    " fastscnn_cityscapes cgnet_cityscapes dabnet_cityscapes sinet_cityscapes bisenet_resnet18_celebamaskhq"
    " danet_resnetd50b_cityscapes lednet_cityscapes fpenet_cityscapes ctxnet_cityscapes erfnet_cityscapes"
    " linknet_cityscapes segnet_cityscapes unet_cityscapes lffd20x5s320v2_widerface"
    " alphapose_fastseresnet101b_coco simplepose_resnet18_coco simplepose_mobile_resnet18_coco"
    " lwopenpose2d_mobilenet_cmupan_coco ibppose_coco centernet_resnet18_voc quartznet5x5_en_ls"
    " zfnet ibnb_resnet50 ibn_resnext50_32x4d ibn_densenet121 airnext50_32x4d_r2 scnet50 revnet38 darts"
    " inceptionresnetv1 efficientnet_edge_small_b seresnet20_cifar10 sepreresnet20_cifar10 wrn20_10_1bit_cifar10"
    " msdnet22_cifar10 resdropresnet20_cifar10 shakedropresnet20_cifar10 fractalnet_cifar10 diapreresnet20_cifar10"
    " fastseresnet101b octresnet10_ad2 resnet10_cub seresnet10_cub mobilenet_wd4_cub proxylessnas_cpu_cub ntsnet_cub"
    " esnet_cityscapes edanet_cityscapes enet_cityscapes sqnet_cityscapes espcnet_cityscapes prnet pfpcnet voca8flame"
    " nvpattexp116bazel76 visemenet20 superpointnet jasper5x3 jasperdr10x5_en raft_small propainter_rfc propainter_ip"
    " propainter"
)
"""One small member of each family; a family is a module of ``pytorchcv.models`` with models of its own."""

SOUND = (torch.rand(2, 64, 100), torch.tensor([100, 80]))
FRAMES = {"frames": torch.rand(5, 3, 64, 64), "masks": torch.rand(5, 1, 64, 64), "comp_flows": torch.rand(4, 4, 64, 64)}
MASKS = torch.rand(1, 5, 1, 64, 64)
FLOWS = (torch.rand(1, 5, 2, 64, 64), MASKS)
DATA: dict[str, Any] = {
    "quartznet5x5_en_ls": SOUND, "jasper5x3": SOUND, "jasperdr10x5_en": SOUND,
    "voca8flame": (torch.rand(2, 1, 16, 29), torch.full((2,), 3)),
    "nvpattexp116bazel76": (torch.rand(2, 8, 16, 29), torch.full((2,), 3)),
    "visemenet20": (torch.rand(34, 8, 195), torch.full((34, 76), 3)),
    "raft_small": (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)),
    "propainter_rfc": FLOWS,
    "propainter": (torch.rand(1, 5, 3, 64, 64), MASKS, MASKS, torch.rand(1, 2, 4, 64, 64), 3),
    "propainter_ip": {**FRAMES, "interpolation": "nearest"},
}  # fmt: skip
"""The inputs of pytorchcv's models that do not take images."""


def pytorchcv_cases() -> Iterator[Case]:
    """Yield the models above that the installed pytorchcv has."""
    from pytorchcv import model_provider

    for name in PYTORCHCV.split():
        if name in model_provider._models:
            features = {"from_audio": False} if DATA.get(name) is SOUND else {}
            make = partial(model_provider.get_model, name, **features)
            yield Case("pytorchcv", name, make, None if name in DATA else _size(name), DATA.get(name))


def _size(name: str) -> tuple[int, ...]:
    if name in ("pfpcnet", "superpointnet"):
        return (1, 320, 240)
    if "cifar" in name:
        return (3, 32, 32)
    if name in ("polynet", "pnasnet5large"):
        return (3, 331, 331)
    if name.startswith(("inception", "xception")):
        return (3, 299, 299)
    if "pose" in name:
        return (3, 256, 192) if "simple" in name or "alpha" in name else (3, 256, 256)
    if "voc" in name or "cityscapes" in name:
        return (3, 480, 480) if "pspnet" in name or "icnet" in name else (3, 128, 128)
    return (3, 224, 224)


def efficientnet_cases() -> Iterator[Case]:
    """Yield the two smallest sizes, and the one with another image size."""
    from efficientnet_pytorch import EfficientNet

    for name, side in (("efficientnet-b0", 64), ("efficientnet-b1", 96), ("efficientnet-b4", 64)):
        yield Case("efficientnet_pytorch", name, partial(EfficientNet.from_name, name), size=(3, side, side))


YOLO = (
    "yolov3-tiny yolov5n yolov6n yolov8n yolov8n-p2 yolov8n-seg yolov8n-pose yolov8n-obb yolov8n-cls yolov8n-ghost"
    " yolov9t yolov10n yolo11n yolo11n-seg yolo11n-pose yolo11n-obb yolo11n-cls yolo12n yolo26n yolo26n-seg"
    " yolov8n-world yolov8n-worldv2 yoloe-11n rtdetr-l rtdetr-resnet50"
)


def ultralytics_cases() -> Iterator[Case]:
    """Yield a small member of each generation and task."""
    for name in YOLO.split():
        yield Case("ultralytics", name, partial(_yolo, name), size=(3, 64, 64))


def _yolo(name: str) -> nn.Module:
    """Return a model as ``YOLO(...)`` builds it, without its engine."""
    from ultralytics.nn import tasks

    kinds = {"seg": "Segmentation", "pose": "Pose", "obb": "OBB", "cls": "Classification", "world": "World",
             "worldv2": "World", "rtdetr": "RTDETRDetection", "yoloe": "YOLOE"}  # fmt: skip
    first, _, last = name.rpartition("-")
    kind = kinds.get(first, kinds.get(last, "Detection"))
    model: nn.Module = getattr(tasks, f"{kind}Model")(f"{name}.yaml", verbose=False)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return model

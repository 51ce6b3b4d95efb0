"""Local variants: one file each. To add one, write its file and add its class to this list."""

from client_app.client import Variant
from client_app.variants.augmented_gradients import AugmentedGradients
from client_app.variants.class_statistics import ClassStatistics
from client_app.variants.control_variates import ControlVariates
from client_app.variants.feature_gradients import FeatureGradients
from client_app.variants.focal import Focal
from client_app.variants.local_batch_norm import LocalBatchNorm
from client_app.variants.local_model import LocalModel
from client_app.variants.local_statistics import LocalStatistics
from client_app.variants.logit_calibration import LogitCalibration
from client_app.variants.logit_shift import LogitShift
from client_app.variants.proximal import Proximal
from client_app.variants.resampling import Resampling
from client_app.variants.reweighting import Reweighting

VARIANTS: dict[str, type[Variant]] = {
    variant.name: variant
    for variant in (
        AugmentedGradients,
        ClassStatistics,
        ControlVariates,
        FeatureGradients,
        Focal,
        LocalBatchNorm,
        LocalModel,
        LocalStatistics,
        LogitCalibration,
        LogitShift,
        Proximal,
        Resampling,
        Reweighting,
    )
}

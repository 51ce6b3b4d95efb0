"""One block of the features re-trained on real, balanced data: CReFF's Figure 2 (Shang et al. 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import nn

from client_app.models import Classifier
from client_app.optimizer import SGD
from client_app.state import State
from strategies.core.server import Deployment, Server, ServerMethod, Update
from strategies.distillation import batches, on_cpu


@dataclass(frozen=True)
class RealBlocks(ServerMethod):
    """Deploy, for each block of the features, the average with that block alone re-trained on the hold-out.

    The models are named real-blocks-1 and so on, from the input; `real-features` re-trains the head. Batch norm stays
    in eval mode, so that nothing but the block's parameters moves. It needs balanced labeled data at the server, so it
    is for analysis, not for use. Identity: steps = 0 deploys the average, once per block.
    """

    name: ClassVar[str] = "real-blocks"
    needs_holdout: ClassVar[bool] = True
    needs_whole_model: ClassVar[bool] = True
    deploys_for_evaluation: ClassVar[bool] = True

    steps: Annotated[int, Ge(0)] = 300
    """Mini-batches for a block in a round, from the average's weights."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Images of the hold-out in a mini-batch."""
    learning_rate: Annotated[float, Gt(0)] = 0.01
    """Learning rate of plain gradient descent."""

    def deploy(
        self,
        server: Server,
        state: State,
        shared: State,
        updates: Sequence[Update],
    ) -> Deployment:
        samples = server.own_samples(self.name)
        model = server.model.to(server.device)
        models = {}
        for number, parameters in enumerate(blocks(model), start=1):
            model.load_state_dict(shared)
            model.eval()
            optimizer = SGD(parameters, self.learning_rate, momentum=0.0, weight_decay=0.0)
            draws = server.generator(self.name)
            for indices in batches(len(samples), self.batch_size, self.steps, draws):
                indices_B = indices.to(samples.labels_N.device)
                logits_BC = model(samples.batch(indices_B))
                loss = F.cross_entropy(logits_BC, samples.labels_N[indices_B])
                optimizer.step(torch.autograd.grad(loss, parameters))

            trained = on_cpu(model)
            in_block = set(map(id, parameters))  # tensors compare by value
            deployed = dict(shared)
            for name, parameter in model.named_parameters():
                if id(parameter) in in_block:
                    deployed[name] = trained[name]
            models[f"{self.name}-{number}"] = deployed
        return Deployment(models, state)


def blocks(model: Classifier) -> list[list[nn.Parameter]]:
    """Return the parameters of each block of the features: a top-level module and the batch norm after it."""
    result: list[list[nn.Parameter]] = []
    for module in model.features.children():
        parameters = [weight for weight in module.parameters() if weight.requires_grad]
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and result:
            result[-1] += parameters
        elif parameters:
            result.append(parameters)
    return result

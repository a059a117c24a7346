"""A dataset of images whose training images are cropped and mirrored at random."""

from dataclasses import replace

import torch
from pydantic import Field, SerializeAsAny

from raysafl.core.augmentation import Augmentation
from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.data.sources import Source


class Augmented(Source):
    """Images of another dataset, of which training reads random crops and mirror images.

    Each time that a local step reads an image, each side is extended by `padding` zeros
    (of the image as it is stored, before it is scaled), a part of the image's own size
    is cut out, and with `flip` left and right change places in half of the cases. What
    is cut out is a function of the seed, the round, the client, the local step and the
    image. Where a model is only evaluated, training images are as they are.

    With `test`, the test images are augmented as well, once for all rounds and runs, so
    that all models are tested on equal images.

    Source: `RandomCrop` and `RandomHorizontalFlip` of torchvision, with which FAST
    (docs/papers.md#fast) trains on CIFAR-10. Its code draws new test images for each
    evaluation.
    """

    dataset: SerializeAsAny[Source] = Field(description="The dataset of images.")
    padding: int = Field(
        default=4, ge=0, description="Zeros by which each side is extended."
    )
    flip: bool = Field(
        default=True, description="Whether half of the images are mirrored."
    )
    test: bool = Field(
        default=False, description="Whether the test images are augmented as well."
    )

    def load(self) -> Dataset:
        """Read the other dataset, and say how its training images are augmented.

        Raises:
            ValueError: the dataset cannot be read, or its samples are no images.
        """
        whole = self.dataset.load()
        shape = whole.train.x.shape[1:]
        if len(shape) != 3:
            raise ValueError(
                "Augmented is for images, [channels, height, width]; samples of "
                f"'{whole.name}' have the shape {list(shape)}"
            )
        augment = Augmentation(self.padding, self.flip)
        test = whole.test
        if self.test:
            rng = Key(0)("augmented test images")
            words_3S = rng.integers(-(2**31), 2**31, (3, len(test)), dtype="int32")
            x_S = augment.applied(torch.tensor(test.x), torch.from_numpy(words_3S))
            test = replace(test, x=x_S.numpy())
        train = replace(whole.train, augment=augment)
        return replace(whole, train=train, test=test)

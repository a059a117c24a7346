"""Models as recipes (`Model.build`), and any module as one flat vector (`FlatModel`)."""

from raysafl.models.basic import CNN, MLP, Logistic
from raysafl.models.dropout import Dropout
from raysafl.models.flat import FlatModel
from raysafl.models.papers import CharLSTM, FastCifarNet, FastFashionNet, FslCifarNet, FslEmnistNet

__all__ = [
    "CNN",
    "MLP",
    "CharLSTM",
    "Dropout",
    "FastCifarNet",
    "FastFashionNet",
    "FlatModel",
    "FslCifarNet",
    "FslEmnistNet",
    "Logistic",
]

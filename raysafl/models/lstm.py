"""A recurrent network for text."""

from pydantic import Field
from torch import Tensor, nn

from raysafl.core.problem import Model


class CharLSTM(Model):
    """A next-character model for Shakespeare: embedding, LSTM, dropout, logits.

    Source: FAST (docs/papers.md#fast), appendix B.1.1, and the code of its authors, which
    has these sizes and 80 characters: 819,920 parameters. They are those of LEAF
    (docs/papers.md#leaf), the benchmark that made the dataset.

    Example:
        >>> import torch
        >>> module = CharLSTM().build(input_shape=(80,), num_classes=65)
        >>> module(torch.zeros(4, 80, dtype=torch.int64)).shape
        torch.Size([4, 80])
        >>> sum(p.numel() for p in module.parameters())
        819920
    """

    embedding: int = Field(
        default=8,
        gt=0,
        description="Dimensions of the vector that stands for a character.",
    )
    hidden: int = Field(default=256, gt=0, description="Units of each LSTM layer.")
    layers: int = Field(default=2, gt=0, description="Number of LSTM layers.")
    vocabulary: int = Field(
        default=80,
        gt=0,
        description="Number of characters that the network knows, if there are no more.",
    )
    dropout: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="Probability to drop an entry of the LSTM's last output.",
    )

    def outputs_for(self, num_classes: int) -> int:
        """Return the number of outputs: `vocabulary`, or one for each character."""
        return max(self.vocabulary, num_classes)

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build a module from tokens to the logits of the next one.

        Args:
            input_shape: the number of tokens in a sample; each is below num_classes.
            num_classes: the number of characters.

        Raises:
            ValueError: the data are no text.
        """
        if len(input_shape) != 1:
            raise ValueError(
                f"CharLSTM needs text, [length] tokens; the data is {list(input_shape)}"
            )
        return _CharLSTMModule(self, self.outputs_for(num_classes))


class _CharLSTMModule(nn.Module):
    """The module of `CharLSTM`: [B, length] int64 tokens to [B, vocabulary] logits."""

    def __init__(self, recipe: CharLSTM, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, recipe.embedding)
        self.lstm = nn.LSTM(
            recipe.embedding, recipe.hidden, recipe.layers, batch_first=True
        )
        self.dropout = nn.Dropout(recipe.dropout)
        self.out = nn.Linear(recipe.hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        out: Tensor = self.out(self.dropout(hidden[:, -1]))
        return out

"""A network as one file of plain products, for ONNX runtimes or torch.export (docs/export.md)."""

from bronet.export.program import ExportFacts
from bronet.export.run import Exported, export_model, export_run, verify_programs
from bronet.wording import Format

__all__ = ["ExportFacts", "Exported", "Format", "export_model", "export_run", "verify_programs"]

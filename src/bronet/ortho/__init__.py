"""Pure maps from free parameters to orthogonal (or contracting) ones: tensors in, tensors out."""

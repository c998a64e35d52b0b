"""Networks that remove noise from images: U-Nets and transformers, with diffusers' tensors."""

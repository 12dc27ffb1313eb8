//! Automatic mixed precision for Burn.

pub mod loss_scale;

//! The loss scaler against recordings of PyTorch, against its own laws, and against field reports.
//!
//! `tests/data/scaler_trajectories.json` and `tests/data/unscale_check.json` were recorded from
//! PyTorch 2.9.1 (CPU): `torch.amp.GradScaler` step by step, its update kernel case by case, and
//! its unscale kernel bit for bit. Every recorded case is either followed exactly or listed by name
//! with the reason for deviating and with what happens instead.
//!
//! # PyTorch's protocol errors
//!
//! The recordings also hold 33 ways to misuse `GradScaler`. What they do there, and for the scaler
//! alone what they do here:
//!
//! - Growth factor 1.0 or 0.5, backoff factor 1.0 (assertion): `LossScaleConfigError`.
//! - Backoff factor 0, interval 0, initial scale 0, negative or beyond f32 (accepted):
//!   `LossScaleConfigError` too; all of them are in `config`.
//! - `set_growth_factor(0.5)` later (accepted): `reconfigure` validates as `new` does.
//! - `update` of an integer, of two values, of a tensor with a gradient (errors): do not compile,
//!   since `set_scale` takes an `f32`.
//! - `update(float)` without a step (accepted): `set_scale`, at any time.
//! - `update`, `step`, `unscale_` before `scale` (assertions): there is no such state, since the
//!   scale exists from `new` on.
//! - `update` without a recorded check (assertion): does not compile, since `update` takes the
//!   verdict.
//! - `load_state_dict` of an empty or incomplete dict (errors): such a record does not deserialize.
//! - `load_state_dict` on a disabled scaler (ignored): the scale stays 1, counters are taken over.
//! - Pickling with a verdict pending (assertion): `SharedScaler::state` includes the verdict.
//!
//! The remaining ones (order of unscale and step, gradients' types, closures) concern the
//! optimizer wrapper.

mod config;
mod field_cases;
mod kernel;
mod laws;
mod oracle;
mod record;
mod shared;
mod trajectories;
mod unscale;

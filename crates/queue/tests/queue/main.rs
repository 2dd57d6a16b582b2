//! The queue as a whole: against a plain model, by tables, and against its budgets.

mod behaviour;
mod budget;
mod cold;
mod exhaustive;
mod model;
mod random;
mod turns;
mod world;

//! What every journal promises, told to each backend; and what only a journal in a file can promise.

mod support; // journals to try, and short ways to say what happens

mod accepting; // submissions, their keys, and the bounds
mod course; // what goes first, what is gathered, what was edited
mod claiming; // who gets what, and who loses it
mod resending; // what had failed is sent again
mod retention; // what is pruned and what is not
mod marks; // how far sources have come
mod schedules; // how far schedules have come, and the events of their runs
mod stepping; // steps: all or nothing, once
mod waiting; // retries, suspensions, arrivals

mod damaged; // a worn disk

mod crash; // copies of the files taken at random moments
mod twins; // random work on memory and SQLite side by side

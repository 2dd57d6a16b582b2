//! What is done when the answer to a command comes.

use leveret_amqp::method::{basic, connection, exchange, queue, tx};
use leveret_broker::message::Reply;

use crate::core::{Context, Core};
use crate::declare::{reply_to_declared, send_declare};
use crate::reply::{self, Fault};
use crate::session::Session;
use crate::waiting::{Awaited, WaitingCommand};
use crate::{consume, deliver};

fn count(messages: u64) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX)
}

impl Session {
    /// An answer came.
    pub(crate) fn answered(&mut self, number: u16, reply: Reply, cx: &mut Context<'_>) {
        match self.core.waiting.take() {
            Some(mut waiting) if waiting.channel == number => {
                let Some(reply) = waiting.is_last(reply) else {
                    // Also when the channel is closed: none of them is to be taken for another answer.
                    self.core.waiting = Some(waiting);
                    return;
                };
                if matches!(waiting.what, Awaited::Close { .. }) {
                    cx.out.put_method(0, &connection::CloseOk);
                    self.core.end_after_peer();
                    return;
                }
                let is_open = self.channels.get(number).is_some_and(|channel| !channel.is_closing);
                if !is_open {
                    unawaited(&mut self.core, reply);
                    return;
                }
                let method = waiting.method;
                if let Err(fault) = self.answer(waiting, reply, cx) {
                    self.fail(number, method, &fault, cx);
                }
            }
            other => {
                self.core.waiting = other;
                unawaited(&mut self.core, reply);
            }
        }
    }

    fn answer(
        &mut self,
        waiting: WaitingCommand,
        reply: Reply,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let WaitingCommand { channel: number, no_wait, what, .. } = waiting;
        let core = &mut self.core;
        let Some(channel) = self.channels.get(number) else { return Ok(()) };
        let says = !no_wait;
        if let (Awaited::Consume { slot, .. }, Reply::Refused { .. } | Reply::Gone) =
            (&what, &reply)
            && let Some(consumer) = core.remove_consumer(*slot)
        {
            consume::forget(channel, *slot, &consumer.tag);
        }
        let vhost = &core.identity.vhost_name;
        match (what, reply) {
            (_, Reply::Refused { code, text }) => return Err(Fault::new(code, text)),
            (Awaited::QueueDeclare { again: Some(declare), .. }, Reply::Gone) => {
                send_declare(core, number, no_wait, *declare, cx);
            }
            (
                Awaited::QueueDeclare { name: queue, .. }
                | Awaited::ReplyToDeclare { name: queue }
                | Awaited::QueuePurge { name: queue }
                | Awaited::Get { queue }
                | Awaited::Consume { queue, .. },
                Reply::Gone,
            ) => return Err(reply::no_queue(&queue, vhost)),
            (Awaited::Consume { slot, .. }, reply) => {
                if let Reply::Consuming { number } = reply
                    && let Some(consumer) = core.consumers.get_mut(slot)
                {
                    consumer.number = Some(number);
                }
                if let Some(consumer) = core.consumers.get(slot).filter(|_| says) {
                    let ok = basic::ConsumeOk { consumer_tag: &consumer.tag };
                    cx.out.put_method(number, &ok);
                }
            }
            (Awaited::Cancel { slot, tag }, _) => {
                if let Some(consumer) = core.remove_consumer(slot) {
                    channel.keep_totals_of(&consumer);
                }
                consume::forget(channel, slot, &tag);
                if says {
                    cx.out.put_method(number, &basic::CancelOk { consumer_tag: &tag });
                }
            }
            (Awaited::ExchangeDeclare, _) if says => {
                cx.out.put_method(number, &exchange::DeclareOk);
            }
            (Awaited::ExchangeDelete, _) if says => cx.out.put_method(number, &exchange::DeleteOk),
            (Awaited::ExchangeBind, _) if says => cx.out.put_method(number, &exchange::BindOk),
            (Awaited::ExchangeUnbind, _) if says => cx.out.put_method(number, &exchange::UnbindOk),
            (Awaited::QueueBind, _) if says => cx.out.put_method(number, &queue::BindOk),
            (Awaited::QueueUnbind, _) if says => cx.out.put_method(number, &queue::UnbindOk),
            (Awaited::QueueDeclare { name, .. }, Reply::Declared { messages, consumers, .. }) => {
                if says {
                    let ok = queue::DeclareOk {
                        queue: &name,
                        message_count: count(messages),
                        consumer_count: count(consumers),
                    };
                    cx.out.put_method(number, &ok);
                }
                channel.last_queue = name;
            }
            (Awaited::ReplyToDeclare { name }, _) => reply_to_declared(channel, &name, no_wait, cx),
            (Awaited::QueuePurge { .. }, Reply::Purged(messages)) if says => {
                cx.out.put_method(number, &queue::PurgeOk { message_count: count(messages) });
            }
            (Awaited::QueueDelete { name }, reply) => {
                // Somebody else may have been quicker, who is told, and says so.
                let messages = if let Reply::Deleted(messages) = reply {
                    core.say_queue_deleted(&name, messages);
                    messages
                } else {
                    0
                };
                if says {
                    cx.out.put_method(number, &queue::DeleteOk { message_count: count(messages) });
                }
            }
            (Awaited::Get { .. }, Reply::Got { delivery, remaining }) => {
                deliver::got(core, channel, &delivery, remaining, cx);
            }
            (Awaited::Get { queue }, _) => {
                channel.totals.taken.get_empty += 1;
                if let Some(queue) = cx.topology.queue(core.identity.vhost, &queue) {
                    channel.taken.of(queue.id).get_empty += 1;
                }
                cx.out.put_method(number, &basic::GetEmpty { cluster_id: "" });
            }
            (Awaited::Commit { .. }, _) => cx.out.put_method(number, &tx::CommitOk),
            _ => {}
        }
        Ok(())
    }
}

/// An answer that nobody waits for any more.
fn unawaited(core: &mut Core, reply: Reply) {
    if let Reply::Got { delivery, .. } = reply {
        deliver::stray(core, &delivery);
    }
}

// Declares mirrored.queue, which the sender and the receiver take for granted,
// or with "count" prints how many messages it holds and how many consumers it has.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/streadway/amqp"
)

func main() {
	conn, err := amqp.Dial("amqp://guest:guest@localhost:5672")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if len(os.Args) > 1 && os.Args[1] == "delete" {
		if _, err := ch.QueueDelete("mirrored.queue", false, false, false); err != nil {
			log.Fatal(err)
		}
		return
	}
	q, err := ch.QueueDeclare("mirrored.queue", true, false, false, false, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(q.Messages, q.Consumers)
}

// A client over TLS: by password and by certificate, and two that must be turned away.
//
// Usage: main PORT DIR, where DIR holds ca.pem, other.pem, client.pem and client.key. The last line is
// `N passed, N failed`.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var port, dir = os.Args[1], os.Args[2]

func config(authority string, withCertificate bool) (*tls.Config, error) {
	pem, err := os.ReadFile(filepath.Join(dir, authority))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if withCertificate {
		own, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// Sends messages of several sizes to a queue and takes them back.
func exchange(connection *amqp.Connection) error {
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	queue, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue.Name, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	for _, size := range []int{0, 1, 16384, 1 << 20} {
		body := bytes.Repeat([]byte{7}, size)
		err := channel.PublishWithContext(context.Background(), "", queue.Name, false, false, amqp.Publishing{Body: body})
		if err != nil {
			return err
		}
		select {
		case got := <-deliveries:
			if !bytes.Equal(got.Body, body) {
				return fmt.Errorf("%d bytes came back as %d", size, len(got.Body))
			}
		case <-time.After(10 * time.Second):
			return fmt.Errorf("%d bytes did not come back", size)
		}
	}
	return nil
}

func byPassword(version uint16) error {
	config, err := config("ca.pem", false)
	if err != nil {
		return err
	}
	config.MinVersion, config.MaxVersion = version, version
	connection, err := amqp.DialTLS("amqps://guest:guest@127.0.0.1:"+port+"/", config)
	if err != nil {
		return err
	}
	if got := connection.ConnectionState().Version; got != version {
		return fmt.Errorf("version %x", got)
	}
	return exchange(connection)
}

func byCertificate(withCertificate bool) error {
	config, err := config("ca.pem", withCertificate)
	if err != nil {
		return err
	}
	connection, err := amqp.DialTLS_ExternalAuth("amqps://127.0.0.1:"+port+"/", config)
	if err != nil {
		return err
	}
	return exchange(connection)
}

func turnedAway(err error) error {
	if err == nil {
		return errors.New("was let in")
	}
	return nil
}

func main() {
	passed, failed := 0, 0
	check := func(name string, err error) {
		if err == nil {
			passed++
			return
		}
		failed++
		fmt.Printf("%s: %v\nFAILED %s\n", name, err, name)
	}
	check("by password, TLS 1.2", byPassword(tls.VersionTLS12))
	check("by password, TLS 1.3", byPassword(tls.VersionTLS13))
	check("by certificate", byCertificate(true))
	check("EXTERNAL without a certificate", turnedAway(byCertificate(false)))
	other, err := config("other.pem", false)
	if err == nil {
		_, err = amqp.DialTLS("amqps://guest:guest@127.0.0.1:"+port+"/", other)
		err = turnedAway(err)
	}
	check("a server that another authority has signed", err)
	fmt.Printf("%d passed, %d failed\n", passed, failed)
}
